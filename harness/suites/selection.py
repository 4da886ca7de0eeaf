"""``load``: from a suite's name to the rows that a run asks, the same ones every time."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path

from harness.errors import UserError
from harness.suites.catalogue import HUB_SUITES, SUITES
from harness.suites.files import read_pinned
from harness.suites.hub import read_hub
from harness.suites.wording import WORDING, Row, rows_of


@dataclass
class SuiteConfig:
    """The ``suite`` group. ``limit`` and ``max_turns`` None: all; ``root`` None: ``suites`` in the cache folder.

    ``history`` says whose answers a later turn comes after: ``own`` (each strategy's) or ``baseline`` (every strategy
    gets the baseline's, so that all are asked the same). ``revision`` and ``file`` are for the suites of the hub.
    ``of`` names suites that are asked together in one run, with ``limit`` rows of each; ``name`` is then free.
    """

    name: str = "quick"
    limit: int | None = None
    root: str | None = None
    seed: int = 0
    max_turns: int | None = None
    history: str = "own"
    revision: str | None = None
    file: str | None = None
    of: list[str] | None = None

    def __post_init__(self) -> None:
        if self.history not in ("own", "baseline"):
            raise UserError(f"suite.history={self.history}: must be own or baseline")


@dataclass(frozen=True)
class Suite:
    """The rows of one run and where they come from. ``checksum`` is the SHA-256 of the whole file (catalogue: ``pin``).

    ``total_rows`` counts the suite before ``limit``; ``wording`` is the template that each question was put into.
    ``parts`` are the suites that it was made of, if it was.
    """

    name: str
    checksum: str
    rows: tuple[Row, ...]
    wording: str
    source: str
    licence: str
    total_rows: int
    parts: tuple[Suite, ...] = ()

    def to_json(self) -> dict[str, object]:
        """What a result says about its suite."""
        about = {"name": self.name, "sha256": self.checksum, "source": self.source, "licence": self.licence}
        about |= {"wording": self.wording, "prompts": len(self.rows), "total_rows": self.total_rows}
        return about | ({"of": [part.to_json() for part in self.parts]} if self.parts else {})


def load(cfg: SuiteConfig) -> Suite:
    """The suite that ``cfg`` names, or the suites.

    With ``limit`` smaller than an external suite its rows are the first of a shuffle by ``seed``, so that every smaller
    limit gives a prefix of every larger one; seed 0 picks the papers' rows. ``quick`` is never shuffled: its file is
    ordered so that every prefix mixes categories. Raises ``UserError`` for an unknown name, a limit or number of turns
    that cannot be, and a file that is missing, truncated or altered.
    """
    if cfg.of is not None:
        return together(cfg.name, [load(replace(cfg, name=name, of=None)) for name in _names(cfg)])
    if cfg.name not in SUITES and cfg.name not in HUB_SUITES:
        known = ", ".join([*SUITES, *HUB_SUITES])
        raise UserError(f"suite.name={cfg.name}: unknown suite; choose one of {known}")
    _require_positive("suite.limit", cfg.limit)
    _require_positive("suite.max_turns", cfg.max_turns)
    records, checksum, source, licence = _read(cfg)
    rows = rows_of(cfg.name, records)
    twice = [row_id for row_id, count in Counter(row.id for row in rows).items() if count > 1]
    if twice:  # only a user's own file can hold any
        raise UserError(f"suite.file={cfg.file}: row {twice[0]} is there twice; give each row once")
    chosen = _subset(rows, cfg.limit, None if cfg.name == "quick" else cfg.seed, cfg.name)
    if cfg.max_turns is not None:
        chosen = tuple(replace(row, turns=row.turns[: cfg.max_turns]) for row in chosen)
    return Suite(cfg.name, checksum, chosen, WORDING[cfg.name], source, licence, len(rows))


def together(name: str, parts: Sequence[Suite]) -> Suite:
    """One suite of ``parts``, a row of each in turn. A row's category is its suite, so that figures are told for each suite.

    The checksum is the SHA-256 of the lines "<suite> <checksum>" in order.
    """
    rows = [[replace(row, category=part.name) for row in part.rows] for part in parts]
    in_turn = tuple(row for row in chain.from_iterable(zip_longest(*rows)) if row is not None)
    lines = "\n".join(f"{part.name} {part.checksum}" for part in parts)
    said = {key: "; ".join(f"{part.name}: {getattr(part, key)}" for part in parts) for key in ("wording", "source", "licence")}
    total = sum(part.total_rows for part in parts)
    return Suite(name, hashlib.sha256(lines.encode()).hexdigest(), in_turn, **said, total_rows=total, parts=tuple(parts))


def _names(cfg: SuiteConfig) -> list[str]:
    known = [*SUITES, *HUB_SUITES]
    names = list(map(str, cfg.of))
    given = f"suite.of=[{','.join(names)}]"
    if cfg.name in known:
        raise UserError(f"suite.name={cfg.name}: is one suite; with {given} give another name, or take suite={cfg.name} alone")
    wrong = [name for name in names if name not in known]
    if wrong or not names or len(set(names)) < len(names):
        what = f"{wrong[0]} is no suite" if wrong else "names a suite twice" if names else "names none"
        raise UserError(f"{given}: {what}; choose of {', '.join(known)}, each once")
    return names


def suites_folder(root: str | None) -> Path:
    """The folder that holds the suites' files: ``root``, or ``suites`` in the cache folder."""
    if root is not None:
        return Path(root).expanduser()
    from harness.cache_folder import cache_folder

    return Path(cache_folder()) / "suites"


def path_of(name: str, root: Path) -> Path:
    """Where the file of a pinned suite lies."""
    entry = SUITES[name]
    return (_bundled_folder() if entry.bundled else root) / entry.file


def _read(cfg: SuiteConfig) -> tuple[list[dict], str, str, str]:
    """Records, checksum, source and licence."""
    root = suites_folder(cfg.root)
    if cfg.name in HUB_SUITES:
        entry = HUB_SUITES[cfg.name]
        records, checksum = read_hub(cfg.name, entry, root, cfg.revision, cfg.file)
        return records, checksum, f"{entry.source} at revision {cfg.revision}", entry.licence
    for key in ("revision", "file"):
        if getattr(cfg, key) is not None:
            raise UserError(f"suite.{key}={getattr(cfg, key)}: {cfg.name} is pinned by its checksum and takes none")
    entry = SUITES[cfg.name]
    return read_pinned(entry, path_of(cfg.name, root)), entry.sha256, entry.source, entry.licence


def _subset(rows: tuple[Row, ...], limit: int | None, seed: int | None, name: str) -> tuple[Row, ...]:
    if limit is None or limit == len(rows):
        return rows
    if limit > len(rows):
        raise UserError(f"suite.limit={limit}: {name} has {len(rows)} rows; choose 1 to {len(rows)}, or null for all")
    if seed is None:
        return rows[:limit]
    import numpy

    # This generator and call are what `datasets.Dataset.shuffle(seed)` does, which the papers picked their rows with.
    try:
        order = numpy.random.default_rng(seed).permutation(len(rows))
    except (ValueError, TypeError):
        raise UserError(f"suite.seed={seed}: must be a whole number, 0 or larger") from None
    return tuple(rows[i] for i in order[:limit])


def _require_positive(key: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UserError(f"{key}={value}: must be a whole number of at least 1, or null for all")


def _bundled_folder() -> Path:
    return Path(__file__).parent.parent / "prompts"
