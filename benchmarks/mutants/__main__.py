"""Plants bugs on purpose, one at a time, and writes down which test or which figure of the gate notices.

    python -m benchmarks.mutants [NAME ...] [--without-gate] [--output results/mutants/mutants.json] [--page docs/mutants.md]

Every mutant is an exact replacement in one file of a temporary copy of the tree; the working tree is never touched. Before
that, all tests that are named run in a copy without a bug, and must pass there. Mutants that leave the outputs right and only
draft worse are also measured with the embedded model and judged by ``python -m harness.gate``. The last line on stdout is one
JSON object. Exit status 1 when a mutant survives, 2 when one's old text is gone from its file. Needs the extra `test`; about
ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.mutants import MUTANTS, gated
from benchmarks.mutants.mutant import Mutant, Stale
from benchmarks.mutants.table import page
from benchmarks.mutants.trial import copy_tree, run_tests
from benchmarks.stored import ROOT, where


def main() -> int:
    arguments = read_arguments()
    chosen = [m for m in MUTANTS if not arguments.names or m.name in arguments.names]
    if unknown := set(arguments.names) - {m.name for m in chosen}:
        print(f"mutants: {min(unknown)}: no such mutant; choose from {', '.join(m.name for m in MUTANTS)}", file=sys.stderr)
        return 2
    try:
        for mutant in MUTANTS:
            mutant.applied_to((ROOT / mutant.file).read_text(encoding="utf-8"))
    except Stale as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        report = examine(chosen, Path(folder), not arguments.without_gate)
    survivors = [m["name"] for m in report["mutants"] if not m["caught"] or m["gate"] and m["gate"]["verdict"] != "regressed"]
    if not arguments.names and not arguments.without_gate:
        for path, text in ((arguments.output, json.dumps(report, indent=1) + "\n"), (arguments.page, page(report))):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    print(json.dumps({"mutants": len(chosen), "survivors": survivors}))
    return 1 if survivors else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these mutants only; then nothing is stored")
    parser.add_argument("--without-gate", action="store_true", help="run the tests alone; then nothing is stored")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "mutants" / "mutants.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "mutants.md")
    return parser.parse_args()


def examine(mutants: list[Mutant], folder: Path, with_gate: bool) -> dict[str, Any]:
    """Everything that is stored: what caught each mutant, and where and with what this was found."""
    sound = copy_tree(folder / "sound")
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    if caught := run_tests(sound, *tests):
        raise SystemExit(f"mutants: {caught.test} fails without any bug: {caught.said}")
    print(f"{len(tests)} files of tests pass without a bug", file=sys.stderr)
    report: dict[str, Any] = {"environment": where(), "tests_without_a_bug": "passed", "gate": None, "mutants": []}
    reference = None
    if with_gate and any(mutant.gated for mutant in mutants):
        reference = gated.measure(sound, folder / "sound-runs")
        again = gated.judge(sound, gated.measure(sound, folder / "sound-runs"), reference)
        if again["verdict"] != "pass":
            raise SystemExit(f"mutants: the gate does not pass the same code against itself: {again}")
        report["gate"] = {"options": gated.OPTIONS, "same_code": again, "sound": gated.acceptance(reference)}
    for mutant in mutants:
        report["mutants"].append(tried(mutant, folder, sound, reference))
        print(json.dumps(report["mutants"][-1]), file=sys.stderr)
    return report


def tried(mutant: Mutant, folder: Path, sound: Path, reference: Path | None) -> dict[str, Any]:
    """One mutant: the test that caught it, and the gate's verdict where it has one. ``reference``: the run without a bug."""
    root = copy_tree(folder / mutant.name)
    mutant.plant(root)
    caught = run_tests(root, *mutant.tests)
    found = {name: getattr(mutant, name) for name in ("name", "what", "file", "old", "new", "tests")}
    found |= {"caught": caught and asdict(caught), "gate": None}
    if mutant.gated and reference:
        run = gated.measure(root, folder / f"{mutant.name}-runs")
        found["gate"] = {**gated.judge(sound, run, reference), "strategies": gated.acceptance(run)}
    return found


if __name__ == "__main__":
    sys.exit(main())
