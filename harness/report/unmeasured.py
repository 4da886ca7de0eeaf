"""What a run did not measure, and why: so that no reader takes a gap for a zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pandas as pd

from harness.report.subject import Reported, Subject
from harness.stats import CONFIDENCE

ALWAYS = (
    ("quality of the answers", "answers are compared with the baseline's, never marked right or wrong"),
    ("energy", "power is sampled on a GPU to mark throttled cells, and is not integrated"),
)  # fmt: skip


def unmeasured(subject: Subject) -> pd.DataFrame:
    """What is missing and why, a row each, with the runs it holds for where it is not all of them."""
    rows = [{"not measured": what, "why": why} for what, why in ALWAYS]
    runs_of: dict[tuple[str, str], list[str]] = {}
    for run in subject.runs:
        for gap in _gaps(run):
            runs_of.setdefault(gap, []).append(run.letter)
    for (what, why), letters in runs_of.items():
        where = f" (run {', '.join(letters)})" if subject.several and len(letters) < len(subject.runs) else ""
        rows.append({"not measured": what + where, "why": why})
    return pd.DataFrame([*rows, *_jobs(subject)])


def _jobs(subject: Subject) -> Iterator[dict[str, str]]:
    """The jobs of a sweep that are not done."""
    for sweep in subject.sweeps:
        ended, done = sweep.ended(), {job.number for job, _ in sweep.done()}
        for job in sweep.jobs:
            if job.number not in done:
                found = ended.get(job.number)
                why = f"{found.status}: {found.reason}" if found else "not begun, or killed: resume=FOLDER finishes the sweep"
                yield {"not measured": f"job {job.number} of a sweep, {job.label}", "why": why}


def _gaps(run: Reported) -> Iterator[tuple[str, str]]:
    yield from _missing_cells(run)
    yield from _machine(run)
    yield from _comparisons(run)
    if run.batch == 1 and not run.load:
        yield "several requests at a time", "every request ran alone; in a batch or under load drafts compete for the same compute"
    cut = [cell.decoded.finish_reason == "length" for cell in run.cells if cell.decoded]
    if any(cut):
        limit = run.config["sampling"]["max_new_tokens"]
        yield "longer answers", f"{sum(cut)} of {len(cut)} answers were cut at sampling.max_new_tokens={limit}"


def _missing_cells(run: Reported) -> Iterator[tuple[str, str]]:
    measured = {name: {c.key.prompt for c in run.cells if c.key.strategy == name} for name in run.figures}
    planned = (run.environment.get("suite") or {}).get("prompts")
    if not run.ended or run.interrupted:
        counts = ", ".join(f"{name} {len(prompts)}" for name, prompts in measured.items())
        of = f" of {planned}" if planned else ""
        why = f"it was stopped before its end; prompts begun{of}: {counts}. resume=FOLDER finishes it"
        yield "the rest of the run", why
    reasons = Counter((c.key.strategy, f"{c.failure.kind}: {c.failure.message}") for c in run.cells if c.failure)
    for (strategy, reason), count in reasons.most_common(8):
        yield f"{count} answer{'s' if count > 1 else ''} of {strategy}", f"failed: {' '.join(reason.split())[:200]}"


def _machine(run: Reported) -> Iterator[tuple[str, str]]:
    if not run.environment.get("gpus"):
        yield "device memory, clocks, power, throttling", "the run used no NVIDIA GPU; memory is the process's own"
    elif any(cell.throttled is None for cell in run.cells):
        yield "throttling", "the driver did not tell for every cell whether clocks were held back"
    if any(f["mean_round"] and f["mean_round"]["host_s"] is None for f in run.figures.values()):
        off = run.config["measure"].get("round_times") is False
        why = "measure.round_times=false switched them off" if off else "the engine does not time every phase of a round"
        yield "a round's phases, in full", why
    if all(f["bandwidth_use"] is None for f in run.figures.values()):
        shared = "what a round of a batch moves is shared by its requests"
        yield "bandwidth use", shared if run.batch > 1 else "the engine did not say how many bytes a round moves, or the copy bandwidth is unknown"


def _comparisons(run: Reported) -> Iterator[tuple[str, str]]:
    prompts = len({cell.key.prompt for cell in run.cells if cell.decoded})
    if run.baseline is None:
        yield "speedups and identical answers", "measure.baseline=null: there is nothing to compare with"
        return
    if 2.0 ** (1 - prompts) > 1 - CONFIDENCE:  # as harness.stats decides
        how = "the intervals are Student's t" if prompts > 1 else "there is no interval"
        yield "a bootstrap interval", f"too few prompts for one ({prompts}): {how}"
    if run.config["measure"]["repetitions"] == 1:
        yield "noise from repetition to repetition", "every cell was measured once (measure.repetitions=1)"
    lossless = run.lossless or {}
    parted = sum(len(found["divergences"]) for found in lossless.get("strategies", {}).values())
    margins = sum(found["margins"] for found in lossless.get("strategies", {}).values())
    if parted > margins:
        why = "computed at the end of a run, for the first 64 of a strategy, by engines that can"
        yield f"the target's margin at {parted - margins} of {parted} first differences", why
    if not lossless.get("control") and run.greedy:
        yield "the control, baseline against itself", "it is decoded again only where a strategy's answer differed"
