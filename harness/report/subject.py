"""What a report is about: runs, read once, with their figures, and names and colours that stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.colours import colours
from harness.errors import UserError, kind_and_line
from harness.losslessness import Setting, losslessness
from harness.opened import Opened, open_run
from harness.resume import argument, command
from harness.store import CONTROL, Cell
from harness.summary import summarise
from harness.sweep.store import Sweep, is_sweep

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Reported:
    """One run. ``figures`` are its strategies' as in ``summary.json``, computed from the cells that are there.

    ``job`` is what sets a sweep's job apart from its others, empty for a run of no sweep.
    ``lossless`` is the losslessness report as in ``summary.json``, ``None`` for a run without a baseline. ``ended`` says
    whether the run wrote its summary.
    """

    letter: str
    job: str
    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    cells: tuple[Cell, ...]
    figures: dict[str, dict[str, Any]]
    lossless: dict[str, Any] | None
    ended: bool
    interrupted: bool

    @property
    def baseline(self) -> str | None:
        return self.config["measure"]["baseline"]

    @property
    def title(self) -> str:
        names = [self.config[group]["name"] for group in ("model", "engine", "suite")]
        return "{} on {}, suite {}".format(*names)

    @property
    def load(self) -> str | None:
        """How conversations followed one another, ``None`` where each request ran alone."""
        concurrency, rate = (self.config["measure"].get(key) for key in ("concurrency", "rate"))
        return f"{concurrency} at a time" if concurrency else f"{rate:g} a second" if rate else None

    @property
    def greedy(self) -> bool:
        return self.config["sampling"]["temperature"] == 0

    @property
    def batch(self) -> int:
        """The requests that were to be decoded together, 1 for a run of an older version too."""
        return self.config["measure"].get("batch", 1)

    def budget(self, strategy: str) -> int | None:
        """The node budget that a strategy was configured with, ``None`` for one that has none, or another every round."""
        budget = self.arms[strategy].get("budget")
        return budget if isinstance(budget, int) else None

    @property
    def budgets(self) -> str:
        """Every strategy's node budget as it was configured; empty where none has one."""
        return ", ".join(f"{name} {self.arms[name]['budget']}" for name in self.figures if "budget" in self.arms[name])

    def plugin(self, strategy: str) -> str:
        """The plugin behind an arm: ``strategies.ddtree.build`` is ddtree, whatever the arm is called."""
        parts = str(self.arms[strategy].get("_target_", "")).split(".")
        return parts[-2] if len(parts) > 1 else strategy

    @property
    def arms(self) -> dict[str, dict[str, Any]]:
        return _arms(self.config)

    def requests(self, strategy: str) -> list:
        return [cell.decoded for cell in self.cells if cell.key.strategy == strategy and cell.decoded]


@dataclass(frozen=True)
class Subject:
    """The runs of a report, in the order in which they were given; of the ``sweeps`` among them, the jobs that are done."""

    runs: tuple[Reported, ...]
    given: tuple[Path, ...] = ()
    sweeps: tuple[Sweep, ...] = ()

    @property
    def several(self) -> bool:
        return len(self.runs) > 1

    @property
    def strategies(self) -> list[str]:
        """Every strategy of any run, in order of appearance."""
        return list(dict.fromkeys(name for run in self.runs for name in run.figures))

    def colour(self, strategy: str) -> str:
        """The same in every figure of the report: a strategy never changes its colour."""
        return colours(self.strategies, {run.baseline for run in self.runs})[strategy]

    def name(self, run: Reported, strategy: str) -> str:
        """What a row or a line is called: the strategy, and its run's letter where there are several."""
        return f"{run.letter}\u00a0·\u00a0{strategy}" if self.several else strategy

    def full_name(self, run: Reported, strategy: str) -> str:
        """The same with what sets a sweep's job apart, where there is room for it; a line may break behind that."""
        return f"{run.letter}\u00a0·\u00a0{run.job}\u00a0· {strategy}" if self.several and run.job else self.name(run, strategy)


def read(folders: Sequence[str]) -> Subject:
    """The runs in ``folders``, of a sweep's folder all of its jobs' that are done.

    Raises ``UserError`` for a folder that is damaged or holds no measured cell.
    """
    if not folders:
        raise UserError("no run given; say python -m harness.report RUN, with a run's or a sweep's folder for RUN")
    given = tuple(map(Path, folders))
    sweeps = tuple(Sweep.open(folder) for folder in given if is_sweep(folder))
    each = [run for folder in given for run in (_done(folder) if is_sweep(folder) else [(folder, "")])]
    found = tuple(_read(folder, job, _letter(number)) for number, (folder, job) in enumerate(each))
    repeated = {str(run.folder) for run in found if sum(run.folder.resolve() == r.folder.resolve() for r in found) > 1}
    if repeated:
        raise UserError(f"{min(repeated)}: is given twice; name each run once")
    return Subject(found, given, sweeps)


def _done(folder: Path) -> list[tuple[Path, str]]:
    found = [(run, job.name) for job, run in Sweep.open(folder).done()]
    if not found:
        raise UserError(f"{folder}: no job of this sweep is done; go on with {command(folder)}")
    return found


def _letter(number: int) -> str:
    return LETTERS[number % 26] * (number // 26 + 1)


def _read(folder: Path, job: str, letter: str) -> Reported:
    run = open_run(folder)
    if not any(cell.decoded for cell in run.cells):
        failed = [cell.failure for cell in run.cells if cell.failure]
        why = f"all {len(failed)} failed, the first with {failed[0].kind}: {failed[0].message}" if failed else "there are no cells"
        raise UserError(f"{folder}: nothing was measured ({why}); finish it with {argument(folder)}, or run anew")
    try:
        return _reported(letter, job, run)
    except (KeyError, TypeError, AttributeError, ValueError) as error:  # an older version's folder, or an edited one
        raise UserError(f"{folder}: is not what this version writes ({kind_and_line(error)}); measure again") from error


def _arms(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every strategy that was asked for, the one of interest last, as ``harness.schemas.read`` orders them."""
    interest = config["strategy"]
    return {**{n: arm for n, arm in config["arms"].items() if n != interest["name"]}, interest["name"]: interest}


def _reported(letter: str, job: str, run: Opened) -> Reported:
    arms, measure, summary = list(_arms(run.config)), run.config["measure"], run.summary or {}
    under_load = measure.get("concurrency") or measure.get("rate")
    blocks = list(run.store.blocks()) if under_load else None
    return Reported(
        letter=letter,
        job=job,
        folder=run.store.folder,
        config=run.config,
        environment=run.environment,
        cells=run.cells,
        figures=summarise(run.cells, arms, measure["baseline"], measure["seed"], run.environment["engine"], blocks),
        lossless=summary.get("losslessness") or _lossless(run),
        ended=run.summary is not None,
        interrupted=bool(summary.get("interrupted")),
    )


def _lossless(run: Opened) -> dict[str, Any] | None:
    """For a run that was killed before its end: everything but the margins, which need the model."""
    baseline = run.config["measure"]["baseline"]
    if baseline is None:
        return None
    dtype = str(run.environment["engine"].get("dtype", "unknown dtype")).removeprefix("torch.")
    greedy = run.config["sampling"]["temperature"] == 0
    setting = Setting(baseline, list(_arms(run.config)), dtype, greedy, run.config["measure"]["repetitions"])
    return losslessness(run.cells, list(run.store.cells(CONTROL)), setting).to_json()
