"""A sweep's folder: ``sweep.json`` says what its jobs are, ``jobs.jsonl`` how each ended, ``jobs/NN`` holds its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from harness import lines, typed
from harness.errors import UserError
from harness.store import Store, holds
from harness.sweep.jobs import Job

SWEEP, ENDED = "sweep.json", "jobs.jsonl"
ROOT = "results/sweeps"
DONE, FAILED, INTERRUPTED = "done", "failed", "interrupted"


@dataclass(frozen=True)
class Ended:
    """How a job's process ended. ``exit`` is its status, negative for a signal; ``reason`` a line where it is not done."""

    job: int
    status: str
    exit: int
    seconds: float
    run: str | None
    reason: str | None = None


class Sweep:
    """``about`` is what ``sweep.json`` holds: the command, the code's git state, flags and jobs."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self.about, self.store = folder, about, Store(folder)
        self.flags: list[str] = about["flags"]
        self.jobs = [Job(job["number"], tuple(job["overrides"]), tuple(job["swept"])) for job in about["jobs"]]

    @classmethod
    def create(cls, root: str, jobs: Sequence[Job], flags: Sequence[str], about: Mapping[str, Any]) -> Sweep:
        swept = [override.partition("=")[0].lstrip("+~").replace("/", ".") for override in jobs[0].swept]
        store = Store.create(root, "-".join(swept)[:80] or "sweep", datetime.now())
        store.write_json(SWEEP, {**about, "flags": list(flags), "jobs": [asdict(job) for job in jobs]})
        return cls.open(store.folder)

    @classmethod
    def open(cls, folder: Path) -> Sweep:
        """Raises ``UserError`` for a folder that is damaged or none of a sweep."""
        about = Store(folder).read_json(SWEEP)
        if about is None:
            raise UserError(f"{folder}: is no sweep's folder: it holds no {SWEEP}")
        try:
            return cls(folder, about)
        except (KeyError, TypeError) as error:
            raise UserError(f"{folder / SWEEP}: is not what this version writes ({error!r}); sweep anew") from error

    def lock(self) -> int | None:
        """Keep other processes from working on this sweep, as ``Store.lock``."""
        return self.store.lock(SWEEP)

    def record(self, ended: Ended) -> None:
        lines.append(self.folder / ENDED, asdict(ended))

    def repair(self) -> None:
        lines.repair(self.folder / ENDED)

    def ended(self) -> dict[int, Ended]:
        """How each job ended the last time, by its number; one that is done and whose run's folder was deleted did not."""
        try:
            found = {ended.job: ended for ended in (typed.record(Ended, line) for line in lines.read(self.folder / ENDED))}
        except ValueError as error:
            raise UserError(f"{self.folder / ENDED}: is not what this version writes ({error}); sweep anew") from error
        if strangers := found.keys() - {job.number for job in self.jobs}:
            raise UserError(f"{self.folder / ENDED}: job {min(strangers)} is none of this sweep's; it is another sweep's file")
        return {job: ended for job, ended in found.items() if ended.status != DONE or self._run(ended).is_dir()}

    def done(self) -> Iterator[tuple[Job, Path]]:
        """The jobs that are done, with the folders of their runs."""
        ended = self.ended()
        for job in self.jobs:
            found = ended.get(job.number)
            if found and found.status == DONE:
                yield job, self._run(found)

    def _run(self, ended: Ended) -> Path:
        return self.folder / (ended.run or "no run")

    def folder_of(self, job: Job) -> Path:
        return self.folder / "jobs" / f"{job.number:0{len(str(len(self.jobs)))}d}"

    def run_of(self, job: Job) -> Path | None:
        """The newest of a job's runs, ``None`` where none has begun."""
        return max((path.parent for path in self.folder_of(job).glob("*/config.yaml")), default=None)


def is_sweep(folder: str | Path) -> bool:
    return holds(Path(folder), SWEEP)
