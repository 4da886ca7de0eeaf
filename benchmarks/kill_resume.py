"""Kills a run at random moments, resumes it, and holds what comes out against a run that nobody disturbed.

    python benchmarks/kill_resume.py --kills 30 --output results/kill_resume.json [KEY=VALUE ...]

Each trial starts ``python -m harness`` with the given overrides and sends SIGKILL at a moment that is uniform over the
time from the making of the run's folder to its end. Every third trial kills the resumed process too. Then the run is
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

from harness.store import Store  # noqa: E402

DEFAULT = ["suite.limit=4", "sampling.max_new_tokens=16", "model.dtype=float32"]
_TIMES = ("_s", "_bytes", "speedup", "speedup_by_prompt", "bandwidth_use", "throttled")


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

    def kill_after(self, seconds: float) -> None:
        """SIGKILL ``seconds`` after the run's folder was there (a resumed run's is there at once)."""
        begun: list[float] = []

        def due(_: Path) -> bool:
            begun.append(time.perf_counter())
            return begun[-1] - begun[0] >= seconds

        self.kill_when(due)

    def finish(self) -> None:
        status = self.start().wait()
        if status:
            raise RuntimeError(f"exit status {status}: {(self._folder / 'output.txt').read_text()[-500:]}")


def without_times(data: Any) -> Any:
    """A summary without what may differ between two runs of the same: times, and memory."""
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
    while not whole.run and process.poll() is None:
        time.sleep(0.002)
    folder_after = time.perf_counter() - begun
    if process.wait():
        raise SystemExit((arguments.folder / "undisturbed" / "output.txt").read_text())
    seconds = time.perf_counter() - begun
    found = {"options": options, "seed": arguments.seed, "undisturbed_s": round(seconds, 2), "trials": []}
    generator = random.Random(arguments.seed)
    total = 0
    while total < arguments.kills:
        trial = Trial(arguments.folder.resolve() / f"trial-{len(found['trials'])}", options)
        moments = [generator.uniform(0, seconds - folder_after)]
        if len(found["trials"]) % 3 == 2:
            moments.append(generator.uniform(0, seconds))
        left = []
        for moment in moments:
            trial.kill_after(moment)
            left.append(len(list(trial.store().cells())))
        trial.finish()
        total += trial.kills
        found["trials"].append(_judged(trial, whole, moments, left))
        print(json.dumps(found["trials"][-1]), flush=True)
    found |= {"kills": total, "passed": all(t["passed"] for t in found["trials"])}
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: found[name] for name in ("kills", "passed", "undisturbed_s")}))
    return 0 if found["passed"] else 1


def _judged(trial: Trial, whole: Trial, moments: list[float], left: list[int]) -> dict[str, Any]:
    twice = [key for key, count in Counter(cell.key for cell in trial.store().cells()).items() if count > 1]
    checks = {
        "same_cells_and_tokens": outputs(trial.store()) == outputs(whole.store()),
        "every_cell_once": not twice,
        "same_summary": without_times(trial.summary()) == without_times(whole.summary()),
    }
    about = {"killed_after_s": [round(m, 3) for m in moments], "kills": trial.kills, "cells_left": left}
    return {**about, **checks, "passed": all(checks.values())}


if __name__ == "__main__":
    sys.exit(main())
