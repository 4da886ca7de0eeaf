"""What came out of a sweep: its table, its plots and the last line, from the runs of the jobs that are done."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from harness import resume
from harness.losslessness import LOUD
from harness.report import batches, figures, words
from harness.report.subject import Reported, Subject, read
from harness.store import SUMMARY, TABLE, Store, finite
from harness.summary import headline
from harness.sweep.jobs import Job
from harness.sweep.store import Sweep
from harness.table import BATCH_COLUMNS, COLUMNS, LOAD_COLUMNS, Further, markdown, meanings, terminal_table

ALL_DONE, SOME_FAILED, STOPPED = 0, 1, 130
PLOTS = {"speedups.png": figures.speedups, "budgets.png": figures.budgets, "batches.png": batches.figure}


def finish(sweep: Sweep, interrupted: bool, write: bool) -> int:
    """Print the table of the jobs that are done, and ``write`` it with its plots; the exit status is what is returned."""
    jobs = [job for job, _ in sweep.done()]
    subject = read([str(sweep.folder)]) if jobs else Subject(())
    runs = dict(zip(jobs, subject.runs, strict=True))
    rows = {name: found for job, run in runs.items() for name, found in _rows(job, run)}
    title = f"{words.title(subject) if len(runs) == 1 or _one_title(subject) else 'Sweep'}: {len(jobs)} of {len(sweep.jobs)} jobs"
    notes = [*batches.sentences(subject), *_notes(sweep, subject), *_way_on(sweep, len(jobs))]
    further = _further(subject)
    if jobs and write:
        sweep.store.write_text(TABLE, markdown(rows, title, notes, first="job", further=further))
        for name, draw in PLOTS.items():
            if figure := draw(subject):
                figure.savefig(sweep.folder / name, dpi=140)
    _print(rows, title, further, [*notes, f"everything is in {sweep.folder}"])
    last = {"sweep": str(sweep.folder), "interrupted": interrupted, "jobs": [_job(sweep, job, runs.get(job)) for job in sweep.jobs]}
    if crossings := batches.crossings(subject):
        last["crossings"] = crossings
    print(json.dumps(finite(last), ensure_ascii=False), flush=True)
    return STOPPED if interrupted else ALL_DONE if len(jobs) == len(sweep.jobs) else SOME_FAILED


def _rows(job: Job, run: Reported) -> list[tuple[str, Mapping[str, Any]]]:
    """Every strategy with its figures, the baseline's only where it is alone."""
    shown = [name for name in run.figures if name != run.baseline] or list(run.figures)
    return [(" ".join(filter(None, (str(job.number), job.name, name))), batches.of(run, name)) for name in shown]


def _further(subject: Subject) -> list[Further]:
    if any(run.batch > 1 for run in subject.runs):
        return [Further("In batches of requests", BATCH_COLUMNS)]
    return [Further("Under load", LOAD_COLUMNS)] if any(run.load for run in subject.runs) else []


def _one_title(subject: Subject) -> bool:
    return len({run.title for run in subject.runs}) == 1


def _notes(sweep: Sweep, subject: Subject) -> list[str]:
    notes = []
    for job, run in sweep.done():
        said = (Store(run).read_json(SUMMARY) or {}).get("notes", [])
        notes += [f"{line} (job {job.number})" for line in said if line.startswith(LOUD)]
    for number, ended in sorted(sweep.ended().items()):
        if ended.reason is not None:
            notes.append(f"job {number} {ended.status} ({sweep.jobs[number - 1].label}): {ended.reason}")
    if any(run.baseline for run in subject.runs):
        notes.append("every speedup is over the baseline of the same job, which its process measured in turn with the strategy")
    if figures.budgets(subject) is not None:
        notes.append("the best budget of this table was picked on its prompts: measure it on others before quoting its speedup")
    return notes


def _way_on(sweep: Sweep, done: int) -> list[str]:
    if done < len(sweep.jobs):
        return [f"finish it with: {resume.command(sweep.folder)}"]
    return [f"a page of it: python -m harness.report {shlex.quote(str(sweep.folder))}"]


def _print(rows: Mapping[str, Any], title: str, further: Sequence[Further], notes: Sequence[str]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    if rows:
        console.print(terminal_table(rows, title, console.width, first="job"))
        for other in further:
            console.print(terminal_table(rows, f"\n{other.title}", console.width, first="job", columns=other.columns))
        console.print()
    shown = (*COLUMNS, *(column for other in further for column in other.columns))
    for line in [*(meanings(shown) if rows else []), "", *notes]:
        console.print(line, markup=False, soft_wrap=True, style="bold red" if line.startswith(LOUD) else None)


def _job(sweep: Sweep, job: Job, run: Reported | None) -> dict[str, Any]:
    ended = sweep.ended().get(job.number)
    about = {"job": job.number, "overrides": list(job.swept), "status": ended.status if ended else "not begun"}
    if run is None:
        return {**about, "reason": ended.reason if ended else None}
    return {**about, "run": str(run.folder), "strategies": headline(run.figures)}
