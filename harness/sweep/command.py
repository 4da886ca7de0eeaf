"""A sweep from its first job to its table: ``start`` begins one, ``go_on`` finishes one that was stopped."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, Quote, QuotedString

from harness import environment, interrupt, resume
from harness.errors import UserError
from harness.mistakes import explain
from harness.store import SUMMARY, Store
from harness.sweep import process
from harness.sweep.finish import finish
from harness.sweep.jobs import Job, jobs_of, root_of
from harness.sweep.store import DONE, FAILED, INTERRUPTED, ROOT, Ended, Sweep


def start(overrides: Sequence[Override], flags: Sequence[str], compose: Callable[[Sequence[str]], Any]) -> int:
    """Run every combination of ``overrides``; the exit status is what is returned.

    ``flags`` stand on each job's command line too. ``compose`` raises where a job's overrides fit no configuration: when
    it does for all of them nothing is begun, otherwise the others run.
    """
    root = root_of(overrides)
    jobs = jobs_of(overrides)
    wrong = {job: error for job in jobs if (error := _error(compose, job))}
    if len(wrong) == len(jobs):
        raise wrong[jobs[0]]
    interrupt.as_exception()
    about = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "harness", *sys.argv[1:]]),
        "git": environment.git_state(Path(__file__).parent),
    }
    sweep = Sweep.create(root or ROOT, jobs, flags, about)
    _say(f"{len(jobs)} job{'s' if len(jobs) > 1 else ''} into {sweep.folder}")
    for job, error in wrong.items():
        _say(f"job {job.number}/{len(jobs)} will fail: {explain(error) or error}")
    return _work(sweep)


def go_on(folder: str, overrides: Sequence[str]) -> int:
    """Run the jobs of a sweep that are not done; one that was stopped on its way resumes its run."""
    resume.refuse_others(folder, overrides)
    interrupt.as_exception()
    return _work(Sweep.open(Path(folder)))


def _error(compose: Callable[[Sequence[str]], Any], job: Job) -> Exception | None:
    try:
        compose(job.overrides)
    except Exception as error:  # whatever Hydra raises: the job's process says the same
        return error
    return None


def _work(sweep: Sweep) -> int:
    lock = sweep.lock()
    sweep.repair()
    done = {job.number for job, _ in sweep.done()}
    jobs = [job for job in sweep.jobs if job.number not in done]
    if not jobs:
        _say(f"nothing is left to do in {sweep.folder}")
    interrupted, seconds = False, []
    try:
        with _ended_like_ctrl_c():
            for position, job in enumerate(jobs):
                left = f", about {_duration(sum(seconds) / len(seconds) * (len(jobs) - position))} left" if seconds else ""
                _say(f"job {job.number}/{len(sweep.jobs)}: {job.label}{left}")
                ended, interrupted = _run(sweep, job, lock)
                sweep.record(ended)
                told = ended.status if ended.reason is None else f"{ended.status}: {ended.reason}"
                _say(f"job {job.number}/{len(sweep.jobs)} {told} ({_duration(ended.seconds)})")
                if interrupted:
                    break
                if ended.status == DONE:  # a job that cannot run ends at once, and tells nothing of the others
                    seconds.append(ended.seconds)
    except KeyboardInterrupt:  # between two jobs
        interrupted = True
    return finish(sweep, interrupted, write=bool(jobs))


def _run(sweep: Sweep, job: Job, lock: int | None) -> tuple[Ended, bool]:
    folder, before = sweep.folder_of(job), sweep.run_of(job)
    if before and not _in_vain(before):
        arguments = [resume.argument(before)]
    else:
        root = QuotedString(str(folder), Quote.single).with_quotes()
        arguments = [*job.overrides, f"measure.root={root}"]
    found = process.run([*sweep.flags, *arguments, "hydra.mode=RUN"], folder, lock, lambda line: _say(f"  {line}"))
    run = sweep.run_of(job)
    status = DONE if found.status == 0 and run and _end_of(run) else INTERRUPTED if found.interrupted else FAILED
    reason = None if status == DONE else _reason(found, run)
    where = str(run.relative_to(sweep.folder)) if run else None
    return Ended(job.number, status, found.status, round(found.seconds, 1), where, reason), found.interrupted


def _in_vain(run: Path) -> bool:
    """Whether a run went to its end without one answer: then it is measured anew, since its failures would stay."""
    summary = _end_of(run)
    return summary is not None and all(figures["cells"] == figures["failed"] for figures in summary["strategies"].values())


def _end_of(run: Path) -> dict[str, Any] | None:
    """The summary of a run that went to its end, ``None`` for any other."""
    try:
        summary = Store(run).read_json(SUMMARY)
    except UserError:
        return None
    return None if summary is None or summary["interrupted"] else summary


def _reason(found: process.Outcome, run: Path | None) -> str:
    if found.interrupted:
        return "stopped by Ctrl-C"
    if found.status < 0:
        return f"ended by signal {signal.Signals(-found.status).name}"
    if run and _in_vain(run):
        failures = [cell.failure for cell in Store(run).cells() if cell.failure]
        return f"no cell could be measured ({failures[0].kind}: {failures[0].message})" if failures else "no cell was measured"
    if found.status == 0:
        return f"exit status 0, but its run did not {'end' if run else 'begin'}"
    if found.status == interrupt.STATUS:
        return "interrupted, and not by this sweep"
    return found.last.removeprefix("harness: ") or f"exit status {found.status}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _ended_like_ctrl_c():
    """Let a polite end of this process (SIGTERM, a closed terminal) end the job's too; what nohup ignores stays ignored."""
    ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in ending:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)
