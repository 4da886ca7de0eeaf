"""Kills a run at random moments, resumes it, and holds what comes out against a run that nobody disturbed.

    python benchmarks/kill_resume.py --kills 30 --output results/kill_resume.json [KEY=VALUE ...]

Each trial starts ``python -m harness`` with the given overrides and sends SIGKILL at a random moment: after a number of
cells that is uniform from none to all, and a random part of a cell's time (behind the last cell: of the time that the end
of a run takes). Every third trial kills the resumed process too. Counting cells and not seconds spreads the moments over
the whole run on a machine whose speed changes. Then the run is
resumed to its end: every cell must stand in the store exactly once, with the tokens of the undisturbed run, and the
summary must equal the undisturbed one in everything but times and memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.stored import write  # noqa: E402
from harness.store import CELLS, Store  # noqa: E402

DEFAULT = ["suite.limit=4", "sampling.max_new_tokens=16", "model.dtype=float32"]
_TIMES = ("_s", "_bytes", "speedup", "speedup_by_prompt", "bandwidth_use", "throttled", "notes")


class Trial:
    """One run in a folder of its own, killed as often as one likes and then finished."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        folder.mkdir(parents=True)
        self._folder, self._options, self.kills = folder, options, 0

    @property
    def run(self) -> Path | None:
        """The run's folder, once it can be resumed."""
        return next((path.parent for path in self._folder.glob("results/runs/*/config.yaml")), None)

    def store(self) -> Store:
        return Store(self.run)

    def summary(self) -> dict[str, Any]:
        return self.store().read_json("summary.json")

    def start(self) -> subprocess.Popen:
        arguments = [f"resume={self.run}"] if self.run else self._options
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "harness", *arguments]
        with open(self._folder / "output.txt", "w") as output:
            return subprocess.Popen(command, cwd=self._folder, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path})

    def kill_when(self, due: Callable[[Path], bool]) -> None:
        """Start or resume, and SIGKILL as soon as ``due(run folder)``; a process that ends before counts no kill."""
        process = self.start()
        while process.poll() is None:
            if self.run and due(self.run):
                process.send_signal(signal.SIGKILL)
                self.kills += process.wait() == -signal.SIGKILL
                return
            time.sleep(0.002)

    def kill_after(self, cells: int, seconds: float) -> None:
        """SIGKILL ``seconds`` after the run's store held ``cells`` cells."""
        reached: list[float] = []

        def due(folder: Path) -> bool:
            path = folder / CELLS
            if (path.read_bytes().count(b"\n") if path.exists() else 0) >= cells:
                reached.append(time.perf_counter())
            return bool(reached) and reached[-1] - reached[0] >= seconds

        self.kill_when(due)

    def finish(self) -> None:
        status = self.start().wait()
        if status:
            raise RuntimeError(f"exit status {status}: {(self._folder / 'output.txt').read_text()[-500:]}")


def without_times(data: Any) -> Any:
    """A summary without what may differ between two runs of the same: times and memory, and notes on how it was run."""
    if isinstance(data, dict):
        kept = {name: value for name, value in data.items() if not name.endswith(_TIMES)}
        return {name: without_times(value) for name, value in kept.items()}
    return [without_times(value) for value in data] if isinstance(data, list) else data


def outputs(store: Store) -> dict:
    return {cell.key: (cell.prompt_sha256, cell.decoded and cell.decoded.tokens) for cell in store.cells()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder for the runs")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    arguments, options = parser.parse_known_args()
    options = options or DEFAULT
    whole = Trial(arguments.folder.resolve() / "undisturbed", options)
    begun = time.perf_counter()
    process = whole.start()
    marks = {}
    while process.poll() is None:
        if whole.run and (whole.run / CELLS).exists():
            marks.setdefault((whole.run / CELLS).read_bytes().count(b"\n"), time.perf_counter() - begun)
        time.sleep(0.002)
    if process.returncode:
        raise SystemExit((arguments.folder / "undisturbed" / "output.txt").read_text())
    seconds, count = time.perf_counter() - begun, len(list(whole.store().cells()))
    cell_s, end_s = (marks[count] - min(marks.values())) / count, seconds - marks[count]
    found = {"options": options, "seed": arguments.seed, "cells": count, "undisturbed_s": round(seconds, 2), "trials": []}
    generator = random.Random(arguments.seed)
    total = 0
    while total < arguments.kills:
        trial = Trial(arguments.folder.resolve() / f"trial-{len(found['trials'])}", options)
        moments, left = [], [0]
        for _ in range(2 if len(found["trials"]) % 3 == 2 else 1):
            cells = generator.randint(left[-1], count)
            moments.append([cells, round(generator.uniform(0, cell_s if cells < count else end_s), 4)])
            trial.kill_after(*moments[-1])
            left.append(len(list(trial.store().cells())))
        trial.finish()
        total += trial.kills
        found["trials"].append(_judged(trial, whole, moments, left[1:]))
        print(json.dumps(found["trials"][-1]), flush=True)
    found |= {"kills": total, "passed": all(t["passed"] for t in found["trials"])}
    if arguments.output:
        write(arguments.output, found)
    print(json.dumps({name: found[name] for name in ("kills", "passed", "undisturbed_s")}))
    return 0 if found["passed"] else 1


def _judged(trial: Trial, whole: Trial, moments: list, left: list[int]) -> dict[str, Any]:
    twice = [key for key, count in Counter(cell.key for cell in trial.store().cells()).items() if count > 1]
    checks = {
        "same_cells_and_tokens": outputs(trial.store()) == outputs(whole.store()),
        "every_cell_once": not twice,
        "same_summary": without_times(trial.summary()) == without_times(whole.summary()),
    }
    about = {"killed_after_cells_and_s": moments, "kills": trial.kills, "cells_left": left}
    return {**about, **checks, "passed": all(checks.values())}


if __name__ == "__main__":
    sys.exit(main())
