"""Runs of the embedded model, with and without a bug, held against each other by ``python -m harness.gate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.mutants.trial import python

OPTIONS = ("experiment=compare", "suite.limit=4", "sampling.max_new_tokens=24", "model.dtype=float32", "measure.warmup=0")


def measure(root: Path, folder: Path) -> Path:
    """The folder of a run of the tree at ``root``, made under ``folder``."""
    done = python(root, "-m", "harness", *OPTIONS, f"measure.root={folder}", cwd=folder.parent)
    if done.returncode:
        raise RuntimeError(f"python -m harness {' '.join(OPTIONS)}: status {done.returncode}: {done.stderr[-600:]}")
    return Path(json.loads(done.stdout.splitlines()[-1])["run"])


def judge(root: Path, candidate: Path, baseline: Path) -> dict[str, Any]:
    """The gate's verdict on acceptance: exit status, and each strategy's figures that regressed or lost."""
    arguments = [str(candidate), "--against", str(baseline), "--only", "acceptance", "--format", "json"]
    done = python(root, "-m", "harness.gate", *arguments)
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(f"harness.gate: status {done.returncode}: {done.stderr[-600:]}")
    found = json.loads(done.stdout)
    regressed = [
        {name: figure[name] for name in ("strategy", "name", "candidate", "baseline", "detail")}
        for figure in found["figures"]
        if figure["verdict"] == "regressed"
    ]
    return {"exit_status": done.returncode, "verdict": found["verdict"], "regressed": regressed}


def acceptance(run: Path) -> dict[str, dict[str, float]]:
    """Each strategy's acceptance length and share of outputs equal to the baseline's."""
    strategies = json.loads((run / "summary.json").read_text(encoding="utf-8"))["strategies"]
    return {name: {key: figures[key] for key in ("acceptance_length", "identical", "failed")} for name, figures in strategies.items()}
