"""From a command line with several values a key to the jobs: every combination, the last key's values changing fastest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.override_parser.types import Override

from harness.errors import UserError

ROOT = "measure.root"


@dataclass(frozen=True)
class Job:
    """One run of a sweep. ``overrides`` are its command line's, ``swept`` those of them that differ from job to job."""

    number: int
    overrides: tuple[str, ...]
    swept: tuple[str, ...]

    @property
    def label(self) -> str:
        """``strategy.budget=8 suite=quick``, for lines that tell of it."""
        return " ".join(self.swept or self.overrides) or "the default"

    @property
    def name(self) -> str:
        """The same with the keys' last parts alone, and without those of groups: ``budget=8 quick``, for tables."""
        return " ".join(_short(override) for override in self.swept)


def jobs_of(overrides: Sequence[Override]) -> list[Job]:
    """The jobs. A key that comes twice has its last values, as Hydra's own sweeper has it.

    Raises ``UserError`` for what no sweep can take.
    """
    values: dict[str, list[str]] = {}
    for override in overrides:
        key, line = override.get_key_element(), str(override.input_line)
        if override.key_or_group == "resume":
            raise UserError(f"{line}: a sweep cannot resume runs; give resume=FOLDER alone, with a run's or a sweep's folder")
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise UserError(f"{line}: has no values to go through; give them with commas between, or range(FIRST,END,STEP)")
        several = [f"{key}={value}" for value in override.sweep_string_iterator()] if override.is_sweep_override() else [line]
        if not several:  # a glob, which names choices of a group
            raise UserError(f"{line}: fits no choice of {key}; glob(...) takes those of a group, see python -m harness --help")
        values[key] = several
    swept = {key for key, several in values.items() if len(several) > 1}
    combinations = itertools.product(*([(key, value) for value in several] for key, several in values.items()))
    return [
        Job(number, tuple(value for _, value in chosen), tuple(value for key, value in chosen if key in swept))
        for number, chosen in enumerate(combinations, 1)
    ]


def root_of(overrides: Sequence[Override]) -> str | None:
    """Where ``measure.root`` wants the sweep, ``None`` where it is not given."""
    given = [override for override in overrides if override.key_or_group == ROOT]
    if any(override.is_sweep_override() for override in given):
        raise UserError(f"{given[-1].input_line}: a sweep has one folder; give {ROOT} one value")
    return str(given[-1].value()) if given else None


def _short(override: str) -> str:
    key, _, value = override.partition("=")
    last = key.lstrip("+~").rpartition(".")[2] if "." in key else ""
    return f"{last}={value}" if last else value
