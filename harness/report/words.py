"""The report's sentences: its title and what it says in one breath."""

from __future__ import annotations

from collections.abc import Iterator

from harness.busy import is_busy
from harness.report.subject import Reported, Subject
from harness.report.tables import interval

FEW = 4


def title(subject: Subject) -> str:
    titles = list(dict.fromkeys(run.title for run in subject.runs))
    return titles[0] if len(titles) == 1 else f"{len(subject.runs)} runs compared"


def gist(subject: Subject) -> list[str]:
    """For each run: what was asked, and which strategy was the fastest. Of many runs: the fastest on each suite."""
    if len(subject.runs) > FEW:
        alike: dict[str, list[Reported]] = {}
        for run in subject.runs:
            alike.setdefault(run.title, []).append(run)
        return [_fastest(title, runs) for title, runs in alike.items()]
    return [f"Run {run.letter}: {_gist(run)}" if subject.several else _gist(run) for run in subject.runs]


def _fastest(title: str, runs: list[Reported]) -> str:
    letters = ", ".join(run.letter for run in runs)
    said = f"{title} (run{'s' if len(runs) > 1 else ''} {letters}): "
    compared = [(f["speedup"], run, name) for run in runs for name, f in run.figures.items() if name != run.baseline and f["speedup"]]
    if not compared:
        return f"{said}no speedup could be computed."
    speedup, run, name = max(compared, key=lambda found: found[0][0])
    job = f" ({run.job})" if run.job else ""
    return f"{said}fastest is {name} of run {run.letter}{job}, {interval(speedup)} the baseline's speed{_accepted(run, name)}."


def _gist(run: Reported) -> str:
    prompts = len({cell.key.prompt for cell in run.cells if cell.decoded})
    sampling = "greedily" if run.greedy else f"at temperature {run.config['sampling']['temperature']:g}"
    repetitions = run.config["measure"]["repetitions"]
    times = {1: "once", 2: "twice"}.get(repetitions, f"{repetitions} times")
    together = f", {run.batch} at a time," if run.batch > 1 else ""
    asked = f"{_count(prompts, 'prompt')}, each decoded {times} {sampling}{together} by {_count(len(run.figures), 'strategy')}."
    compared = {n: f["speedup"] for n, f in run.figures.items() if n != run.baseline and f["speedup"]}
    if not compared:
        return asked
    best = max(compared, key=lambda name: compared[name][0])
    value, low, high = compared[best]
    sure = "" if low is None or low > 1 else " The interval includes 1: on these prompts it may be no faster at all."
    return f"{asked} Fastest: {best}, {interval(compared[best])} the baseline's speed{_accepted(run, best)}.{sure}"


def _accepted(run: Reported, name: str) -> str:
    """Nothing where nobody counted rounds."""
    tokens = run.figures[name]["acceptance_length"]
    return "" if tokens is None else f", {tokens:.2f} tokens a round"


def _count(number: int, what: str) -> str:
    plural = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{number} {what if number == 1 else plural}"


def warnings(subject: Subject) -> list[str]:
    """What a reader must know before reading any figure; what holds for several runs is said once."""
    runs_of: dict[str, list[str]] = {}
    for run in subject.runs:
        for said in _warnings(run):
            runs_of.setdefault(said, []).append(run.letter)
    return [f"Run {', '.join(letters)}: {said}" if subject.several else said for said, letters in runs_of.items()]


def _warnings(run: Reported) -> Iterator[str]:
    failed = sum(cell.failure is not None for cell in run.cells)
    held = sum(cell.throttled is True for cell in run.cells)
    if not run.ended or run.interrupted:
        yield "Stopped before its end; the figures are of the cells that were finished."
    if failed:
        yield f"{failed} of {len(run.cells)} cells failed; they are in no figure. Reasons are below."
    if held:
        yield f"{held} of {len(run.cells)} cells were measured while the machine held its clocks back."
    if is_busy(run.environment.get("cpu") or {}):
        yield "The machine was busy when measuring began: speeds may be those of a shared one."
