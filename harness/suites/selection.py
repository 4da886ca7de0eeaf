"""``load``: from a suite's name to the rows that a run asks, the same ones every time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
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
    """

    name: str = "quick"
    limit: int | None = None
    root: str | None = None
    seed: int = 0
    max_turns: int | None = None
    history: str = "own"
    revision: str | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        if self.history not in ("own", "baseline"):
            raise UserError(f"suite.history={self.history}: must be own or baseline")


@dataclass(frozen=True)
class Suite:
    """The rows of one run and where they come from. ``checksum`` is the SHA-256 of the whole file (catalogue: ``pin``).

    ``total_rows`` counts the suite before ``limit``; ``wording`` is the template that each question was put into.
    """

    name: str
    checksum: str
    rows: tuple[Row, ...]
    wording: str
    source: str
    licence: str
    total_rows: int

    def to_json(self) -> dict[str, object]:
        """What a result says about its suite."""
        about = {"name": self.name, "sha256": self.checksum, "source": self.source, "licence": self.licence}
        return about | {"wording": self.wording, "prompts": len(self.rows), "total_rows": self.total_rows}


def load(cfg: SuiteConfig) -> Suite:
    """The suite that ``cfg`` (a ``SuiteConfig`` or a Hydra node with its fields) names.

    With ``limit`` smaller than an external suite its rows are the first of a shuffle by ``seed``, so that every smaller
    limit gives a prefix of every larger one; seed 0 picks the papers' rows. ``quick`` is never shuffled: its file is
    ordered so that every prefix mixes categories. Raises ``UserError`` for an unknown name, a limit or number of turns
    that cannot be, and a file that is missing, truncated or altered.
    """
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
