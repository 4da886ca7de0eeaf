"""What can happen to a run's folder: cut files, junk, lines of other runs and versions, values that cannot be."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness import lines
from harness.store import CELLS, CONTROL, SAMPLES

ENVIRONMENT, CONFIG, SUMMARY = "environment.json", "config.yaml", "summary.json"
FILES = (CELLS, CONFIG, ENVIRONMENT, SUMMARY, SAMPLES)
JUNK = (None, "junk", "", -1, 0, 1.5, 10**30, True, [], {}, [None], {"a": 1}, float("nan"), float("inf"), "NaN", [[1]])


class Damage(NamedTuple):
    """``done`` changes a folder, given another run's folder and a source of chance.

    ``foreign``: with a right checksum, as another version might have written it. Then numbers of the right kind may differ.
    """

    name: str
    done: Callable[[Path, Path, random.Random], None]
    foreign: bool = False


def damages(seed: int, junk: int = 40) -> Iterator[Damage]:
    """All that have a name, then ``junk`` whose place and value chance decides."""
    yield from NAMED
    for name in FILES:
        yield Damage(f"{name} missing", lambda f, o, r, n=name: (f / n).unlink())
        yield Damage(f"{name} empty", lambda f, o, r, n=name: (f / n).write_bytes(b""))
        yield Damage(f"{name} binary", lambda f, o, r, n=name: (f / n).write_bytes(r.randbytes(300)))
        yield Damage(f"{name} cut", lambda f, o, r, n=name: _cut(f / n, r))
        yield Damage(f"{name} is a folder", lambda f, o, r, n=name: ((f / n).unlink(), (f / n).mkdir()))
        yield Damage(f"{name} leads nowhere", lambda f, o, r, n=name: ((f / n).unlink(), (f / n).symlink_to("nowhere")))
        yield Damage(f"{name} leads to itself", lambda f, o, r, n=name: ((f / n).unlink(), (f / n).symlink_to(n)))
        yield Damage(f"{name} of another run", lambda f, o, r, n=name: shutil.copy(o / n, f / n))
        yield Damage(f"{name} in UTF-16", lambda f, o, r, n=name: (f / n).write_bytes((f / n).read_text().encode("utf-16")))
        yield Damage(f"{name} a byte flipped", lambda f, o, r, n=name: _flip(f / n, r))
        yield Damage(f"{name} unreadable", lambda f, o, r, n=name: os.chmod(f / n, 0))
    generator = random.Random(seed)
    for number in range(junk):
        file, value = generator.choice((CELLS, CELLS, CELLS, ENVIRONMENT, SUMMARY)), generator.choice(JUNK)
        yield Damage(f"{file} with junk, {number}", lambda f, o, r, n=file, v=value: _junk(f, n, v, r), foreign=True)


def _cut(path: Path, generator: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: generator.randrange(1, len(data))])


def _flip(path: Path, generator: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    path.write_bytes(bytes(data))


def _edit(folder: Path, change: Callable[[list[bytes]], list[bytes]], name: str = CELLS) -> None:
    path = folder / name
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def _rewrite(folder: Path, change: Callable[[dict[str, Any]], None], name: str = CELLS, number: int = 1) -> None:
    """Change what a line or an object says, its checksum right again: as another version might have written it."""
    if name.endswith(".json"):
        data = json.loads((folder / name).read_text())
        data.pop("crc32")
        change(data)
        _write_json(folder, name, data)
        return
    found = list(lines.read(folder / name))
    (folder / name).unlink()
    change(found[number])
    for data in found:
        _append(folder / name, data)


def _append(path: Path, data: dict[str, Any]) -> None:
    text = json.dumps(data).encode()
    with open(path, "ab") as file:
        file.write(text[:-1] + b', "crc32": "%08x"}\n' % zlib.crc32(text))


def _write_json(folder: Path, name: str, data: dict[str, Any]) -> None:
    checksum = f"{zlib.crc32(json.dumps(data, sort_keys=True).encode()):08x}"
    (folder / name).write_text(json.dumps({**data, "crc32": checksum}, indent=2) + "\n")


def _junk(folder: Path, name: str, value: Any, generator: random.Random) -> None:
    """One field, however deep, replaced or taken away."""
    count = sum(1 for _ in lines.read(folder / name)) if name.endswith("l") else 1

    def change(data: dict[str, Any]) -> None:
        holder, key = generator.choice(list(_fields(data)))
        if generator.random() < 0.15:
            holder.pop(key)
        else:
            holder[key] = copy.deepcopy(value)

    _rewrite(folder, change, name, generator.randrange(count))


def _fields(data: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(data, (dict, list)):
        for key in list(data) if isinstance(data, dict) else range(len(data)):
            yield data, key
            yield from _fields(data[key])


def _decoded(change: Callable[[dict[str, Any]], None]) -> Callable[[Path, Path, random.Random], None]:
    return lambda folder, other, generator: _rewrite(folder, lambda cell: change(cell["decoded"]))


NAMED = (
    Damage("nothing", lambda f, o, r: None),
    Damage("last line half written", lambda f, o, r: (f / CELLS).write_bytes((f / CELLS).read_bytes()[:-9])),
    Damage("cells in another order", lambda f, o, r: _edit(f, lambda found: r.sample(found, len(found)))),
    Damage("a cell twice", lambda f, o, r: _edit(f, lambda found: [*found, found[2]])),
    Damage("all cells twice", lambda f, o, r: _edit(f, lambda found: found * 2)),
    Damage("a cell taken away", lambda f, o, r: _edit(f, lambda found: found[:1] + found[2:])),
    Damage("a cell cut in the middle", lambda f, o, r: _edit(f, lambda found: [found[0][:-40], *found[1:]])),
    Damage("a cell of another run", lambda f, o, r: _edit(f, lambda found: [*found, (o / CELLS).read_bytes().splitlines(keepends=True)[0]])),
    Damage("empty lines", lambda f, o, r: _edit(f, lambda found: [found[0], b"\n", *found[1:]])),
    Damage("lines that end as on Windows", lambda f, o, r: _edit(f, lambda found: [line.replace(b"\n", b"\r\n") for line in found])),
    Damage("a mark in front", lambda f, o, r: (f / CELLS).write_bytes(b"\xef\xbb\xbf" + (f / CELLS).read_bytes())),
    Damage("the files of two runs", lambda f, o, r: [shutil.copy(o / n, f / n) for n in (CONFIG, ENVIRONMENT)]),
    Damage("summary without strategies", lambda f, o, r: _rewrite(f, lambda d: d.pop("strategies"), SUMMARY), foreign=True),
    Damage("environment without engine", lambda f, o, r: _rewrite(f, lambda d: d.pop("engine"), ENVIRONMENT), foreign=True),
    Damage("environment without suite", lambda f, o, r: _rewrite(f, lambda d: d.pop("suite"), ENVIRONMENT), foreign=True),
    Damage("environment without cpu", lambda f, o, r: _rewrite(f, lambda d: d.pop("cpu"), ENVIRONMENT), foreign=True),
    Damage("environment without git", lambda f, o, r: _rewrite(f, lambda d: d.update(git=None), ENVIRONMENT), foreign=True),
    Damage("environment a list", lambda f, o, r: (f / ENVIRONMENT).write_text("[1, 2]\n")),
    Damage("a cell with one field more", lambda f, o, r: _rewrite(f, lambda d: d.update(colour="red")), foreign=True),
    Damage("a cell with one field less", lambda f, o, r: _rewrite(f, lambda d: d.pop("prompt_tokens")), foreign=True),
    Damage("a round with one field more", _decoded(lambda d: d["rounds"][0].update(colour="red")), foreign=True),
    Damage("a cell neither decoded nor failed", lambda f, o, r: _rewrite(f, lambda d: d.update(decoded=None)), foreign=True),
    Damage("a cell both decoded and failed", lambda f, o, r: _rewrite(f, lambda d: d.update(failure={"kind": "E", "message": "m"})), foreign=True),
    Damage("a time that is no number", _decoded(lambda d: d.update(ttft_s=float("nan"))), foreign=True),
    Damage("a time without end", _decoded(lambda d: d.update(end_s=float("inf"))), foreign=True),
    Damage("a time before the start", _decoded(lambda d: d.update(ttft_s=-1.0)), foreign=True),
    Damage("an end before the first token", _decoded(lambda d: d.update(end_s=d["ttft_s"] / 2)), foreign=True),
    Damage("a round that accepts less than nothing", _decoded(lambda d: d["rounds"][0].update(accepted=-3)), foreign=True),
    Damage("a round that emits what it has not", _decoded(lambda d: d["rounds"][0].update(emitted=50)), foreign=True),
    Damage("a round too few", _decoded(lambda d: d["rounds"].pop()), foreign=True),
    Damage("a token too many", _decoded(lambda d: d["tokens"].append(7)), foreign=True),
    Damage("no token at all", _decoded(lambda d: d.update(tokens=[])), foreign=True),
    Damage("tokens that are words", _decoded(lambda d: d.update(tokens=["a"] * len(d["tokens"]))), foreign=True),
    Damage("a control cell of the wrong kind", lambda f, o, r: (f / CONTROL).write_text("rubbish\n")),
    Damage("samples that are none", lambda f, o, r: (f / SAMPLES).write_text("rubbish\n")),
    Damage("config of other groups", lambda f, o, r: (f / CONFIG).write_text("a: 1\n")),
    Damage("config that says something else", lambda f, o, r: _config(f, "temperature: 0.0", "temperature: 0.5")),
    Damage("table.md is a folder", lambda f, o, r: ((f / "table.md").unlink(), (f / "table.md").mkdir())),
    Damage("plot.png is a folder", lambda f, o, r: ((f / "plot.png").unlink(), (f / "plot.png").mkdir())),
    Damage("the folder is unreadable", lambda f, o, r: os.chmod(f, 0)),
    Damage("the folder cannot be written", lambda f, o, r: ((f / "table.md").unlink(), os.chmod(f, 0o555))),
    Damage("the folder itself is a file", lambda f, o, r: (shutil.rmtree(f), f.write_text("x"))),
    Damage("the folder is gone", lambda f, o, r: shutil.rmtree(f)),
    Damage("the folder is empty", lambda f, o, r: (shutil.rmtree(f), f.mkdir())),
)  # fmt: skip


def _config(folder: Path, old: str, new: str) -> None:
    text = (folder / CONFIG).read_text()
    assert old in text
    (folder / CONFIG).write_text(text.replace(old, new, 1))

