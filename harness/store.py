"""A run's folder: what would be needed to repeat it, and one line of JSON per finished cell."""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from harness import lines, typed
from harness.block import Block
from harness.errors import UserError, kind_and_line, one_line
from harness.records import Decoded

CELLS, CONTROL, SAMPLES, BLOCKS, COSTS = "cells.jsonl", "control.jsonl", "samples.jsonl", "blocks.jsonl", "costs.jsonl"
SUMMARY, TABLE, PLOT = "summary.json", "table.md", "plot.png"

_NO_NAME, _LONGEST_LABEL = re.compile(r"[^A-Za-z0-9_.+-]+"), 120


class Key(NamedTuple):
    """What makes a cell the one it is. ``turn`` counts a conversation's user turns from 0."""

    prompt: str
    turn: int
    strategy: str
    repetition: int


@dataclass(frozen=True)
class Failure:
    """Why a cell has no output: the exception's class and its message."""

    kind: str
    message: str


@dataclass(frozen=True)
class Cell:
    """One measured (prompt, turn, strategy, repetition): a ``decoded`` record or a ``failure``, never both.

    ``prompt_sha256`` is over the prompt's token ids, written in decimal with spaces between. ``order`` counts the
    cells of a run in the order in which they were measured, ``session`` the processes that worked on it: 0 is the
    first, every resumption adds one. ``started_at`` is in seconds since 1970. ``throttled`` says whether the machine
    held its clocks back meanwhile, ``None`` where it does not tell.

    ``batch`` numbers the prompts that were decoded together: cells of one batch, turn, repetition, strategy and session
    came from one call. ``batch_size`` is how many requests that call was given; a request that failed before has none.
    Both are ``None`` where requests go one by one.
    """

    key: Key
    category: str
    order: int
    prompt_tokens: int = 0
    prompt_sha256: str = ""
    decoded: Decoded | None = None
    text: str = ""
    failure: Failure | None = None
    host_peak_bytes: int = 0
    device_peak_bytes: int = 0
    session: int = 0
    started_at: float = 0.0
    throttled: bool | None = None
    batch: int | None = None
    batch_size: int | None = None

    def to_json(self) -> dict[str, Any]:
        rest = {name: value for name, value in asdict(self).items() if name != "key"}
        return {**self.key._asdict(), **rest, "decoded": self.decoded and self.decoded.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cell:
        key = {name: data[name] for name in Key._fields}
        found = typed.record(cls, {"key": key, **{name: value for name, value in data.items() if name not in key}})
        if (found.decoded is None) == (found.failure is None):
            raise ValueError("it has both an output and a failure, or neither")
        return found


class Store:
    """Writes and reads one run's folder. Cells are appended and flushed one by one, so a killed run keeps them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, root: str, label: str, now: datetime) -> Store:
        """A new folder ``root/<timestamp>-<label>``; a number is added when two runs start in the same second.

        What could be read as part of a path, or could not be part of a name, is written as ``_``.
        """
        stem = f"{now:%Y%m%d-%H%M%S}-{_NO_NAME.sub('_', label)[:_LONGEST_LABEL]}"
        for number in range(1, 100):
            folder = Path(root) / (stem if number == 1 else f"{stem}-{number}")
            try:
                folder.mkdir(parents=True)
                return cls(folder)
            except FileExistsError:
                if not Path(root).is_dir():
                    break
            except OSError as error:
                raise UserError(f"cannot make the run's folder {folder}: {error.strerror}; set measure.root") from error
        raise UserError(f"cannot make a run's folder under {root}; set measure.root to a folder that can be written")

    def lock(self, name: str = "config.yaml") -> int | None:
        """Keep other processes from writing here until this one ends, however it ends, and all that inherit the descriptor."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            return None
        try:
            self._held = open(self.folder / name)
        except OSError as error:
            raise UserError(f"{self.folder / name}: cannot be read: {error.strerror}") from error
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{self.folder}: another process measures into it; wait until it ends, or stop it") from None
        except OSError:
            pass  # some network file systems have no locks
        return self._held.fileno()

    def append(self, *cells: Cell, name: str = CELLS) -> None:
        """Those that were measured together in one call, so that a kill seldom leaves a part of them."""
        lines.append(self.folder / name, *(cell.to_json() for cell in cells))

    def append_block(self, block: Block) -> None:
        lines.append(self.folder / BLOCKS, block.to_json())

    def blocks(self) -> Iterator[Block]:
        """Every block under load that ended. Raises ``UserError`` for a line that was altered."""
        for number, data in enumerate(lines.read(self.folder / BLOCKS), 1):
            try:
                yield Block.from_json(data)
            except ValueError as error:
                raise UserError(f"{self.folder / BLOCKS}, line {number}: is no block of this version ({one_line(error)}); measure again") from error

    def append_costs(self, table: Mapping[str, Any]) -> None:
        lines.append(self.folder / COSTS, table)

    def costs(self) -> list[dict[str, Any]]:
        """What rounds were measured to cost, as the engine told it, with the session. Empty where no strategy asked."""
        return list(lines.read(self.folder / COSTS))

    def cells(self, name: str = CELLS) -> Iterator[Cell]:
        """Every finished cell. Raises ``UserError`` for a line that was altered and for a cell that stands twice."""
        path, seen = self.folder / name, set()
        for number, data in enumerate(lines.read(path), 1):
            try:
                cell = Cell.from_json(data)
            except (KeyError, ValueError) as error:
                raise UserError(f"{path}, line {number}: is no cell of this version ({kind_and_line(error)}); measure again") from error
            if cell.key in seen:
                raise UserError(f"{path}, line {number}: {cell.key} stands there a second time; remove one of the lines")
            seen.add(cell.key)
            yield cell

    def write_text(self, name: str, text: str) -> None:
        self.write(name, text.encode("utf-8"))

    def write(self, name: str, data: bytes) -> None:
        """Whole or not at all: what a killed process leaves is the old file or the new one."""
        part = self.folder / f".{name}.part"
        try:
            part.write_bytes(data)
            os.replace(part, self.folder / name)
        except OSError as error:
            raise UserError(f"{self.folder / name}: cannot be written: {error.strerror}; make room or set measure.root") from error

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """An object with a checksum of itself, which ``read_json`` verifies."""
        clean = finite(data)
        checked = {**clean, "crc32": _checksum(clean)}
        self.write_text(name, json.dumps(checked, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """What ``write_json`` wrote; ``None`` where there is no such file."""
        path = self.folder / name
        if not path.exists():
            return None
        way_out = f"resume={self.folder} writes it anew" if name == SUMMARY else "put it back, or run anew"
        try:
            data = lines.parsed(path.read_text(encoding="utf-8"))
            intact = data.pop("crc32", None) == _checksum(data)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: is damaged ({' '.join(str(error).split())}); {way_out}") from error
        if not intact:
            raise UserError(f"{path}: was altered after it was written: its checksum differs; {way_out}")
        return data


def holds(folder: Path, name: str) -> bool:
    """Whether there is a file of that name. Raises ``UserError`` for a folder that may not be looked into."""
    try:
        return (folder / name).is_file()
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from error


def _checksum(data: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(data, sort_keys=True, allow_nan=False).encode()):08x}"


def finite(data: Any) -> Any:
    """The same data with what JSON has no word for, NaN and infinities, as ``null``."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(name): finite(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return data
