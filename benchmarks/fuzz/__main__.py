"""Wrong and odd configurations and damaged run folders: each must be a one-line error or a clean run with right numbers.

    python -m benchmarks.fuzz [--seed 0] [--configurations 100] [--output results/fuzz.json]

Configurations are random overrides of the real keys, given to ``python -m harness`` with the embedded model in fp32, one
prompt and at most 8 tokens; every clean run's numbers are worked out again from its cells. Damaged folders (cut and emptied
files, junk, lines of other runs and versions, files that cannot be read) go to ``harness.load``, ``python -m harness.gate``,
``resume=`` and, a few, ``python -m harness.report``; what these say must be true of the sound run. Every call is a process of
its own, two at a time. The last line on stdout is one JSON object. Exit status 1 when anything was found. Takes about half an hour.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.fuzz.calls import Answer, call, wrong_form
from benchmarks.fuzz.configurations import configurations
from benchmarks.fuzz.damages import damages
from benchmarks.fuzz.folders import Folders
from benchmarks.fuzz.runs import wrong_numbers
from benchmarks.stored import ROOT, nowhere, where, write

REPORTED = ("nothing", "last line half written", "a cell taken away", "environment without cpu", "summary without strategies",
            "config.yaml of another run", "cells.jsonl binary")  # fmt: skip


def main() -> int:
    arguments = read_arguments()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        work = Path(folder)
        kinds = configured(arguments.seed, arguments.configurations, work), damaged(arguments.seed, work)
        with ThreadPoolExecutor(len(kinds)) as pool:
            cases = list(chain(*pool.map(list, kinds)))
    found = [case for case in cases if case["problems"]]
    report = {
        "environment": where(),
        "seed": arguments.seed,
        "counts": counts(cases),
        "problems": len(found),
        "cases": cases,
    }
    write(arguments.output, report)
    print(json.dumps({"output": str(arguments.output), "cases": len(cases), "problems": len(found), "counts": report["counts"]}))
    return 1 if found else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--configurations", type=int, default=100)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "fuzz.json")
    return parser.parse_args()


def configured(seed: int, count: int, work: Path):
    """A record for each random configuration."""
    for number, overrides in enumerate(configurations(seed, count)):
        folder = work / f"configuration-{number}"
        folder.mkdir()
        answer = call("harness", overrides, folder)
        problems = [form] if (form := wrong_form(answer)) else []
        if answer.refused and any(folder.iterdir()):
            problems.append(f"refused, and left {', '.join(sorted(path.name for path in folder.iterdir()))}")
        if not problems and not answer.refused:
            problems = wrong_numbers(answer, folder)
        yield told({"kind": "harness", "arguments": overrides, "answer": answer, "problems": problems}, folder)


def damaged(seed: int, work: Path):
    """A record for each damage and each call that meets it."""
    folders = Folders(work)
    for damage in damages(seed):
        kinds = ("load", "gate", "gated", "resume") + ("report",) * (damage.name in REPORTED)
        for record in folders.tried(damage, kinds):
            yield told(record, work)


def told(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A record as it is stored, with no place of this machine in it, and printed."""
    answer: Answer = record.pop("answer")
    ended = "refused" if answer.refused else "ran"
    record |= {"ended": ended, "status": answer.status, "line": nowhere(answer.line, folder) or None}
    record["problems"] = [nowhere(problem, folder) for problem in record["problems"]]
    if record["problems"]:
        record["said"] = nowhere((answer.err or answer.out)[-2000:], folder)
    print(json.dumps(record, ensure_ascii=False), file=sys.stderr)
    return record


def counts(cases: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How each kind of call ended."""
    found: dict[str, Counter] = {}
    for case in cases:
        found.setdefault(case["kind"], Counter())[case["ended"] if not case["problems"] else "wrong"] += 1
    return {kind: dict(sorted(ended.items())) for kind, ended in found.items()}


if __name__ == "__main__":
    sys.exit(main())
