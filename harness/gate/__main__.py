"""``python -m harness.gate``: did a change make decoding slower, or say something else?"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from harness.arguments import Parser
from harness.errors import UserError
from harness.gate.compare import TOLERANCE, Options, compare
from harness.gate.output import annotations, as_json, markdown, text
from harness.gate.reading import read, save
from harness.pipe import ends_with_its_reader

WRONG_USAGE, INTERRUPTED = 2, 130

EXAMPLES = """\
examples:
  python -m harness.gate results/runs/NEW --against cpu-fp32     a stored baseline: results/baselines/cpu-fp32.json
  python -m harness.gate results/runs/NEW --against results/runs/OLD
  python -m harness.gate --save cpu-fp32 results/runs/GOOD       store a baseline
  python -m harness.gate results/runs/NEW --against cpu-fp32 --format github     in a GitHub workflow
  python -m harness.gate results/runs/NEW --against cpu-fp32 --strategy ddtree --common --only acceptance

exit status: 0 pass, 1 regressed, 2 wrong usage or unreadable input, 3 inconclusive. See docs/gate.md.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is what is returned."""
    try:
        with ends_with_its_reader():
            parser = _parser()
            asked = parser.parse_args(arguments)
            if asked.save is None:
                return _compare(asked)
            for name in ("tolerance", "strategy", "common", "only", "absolute", "format"):
                if getattr(asked, name) != parser.get_default(name):
                    parser.error(f"argument --{name}: not allowed with argument --save, which stores the whole run")
            return _save(asked)
    except UserError as error:
        print(f"gate: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_USAGE
    except KeyboardInterrupt:
        print("gate: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m harness.gate",
        description="Compare a run with a baseline: pass, regressed or inconclusive, figure by figure.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="a run's folder, or a stored baseline")
    job = parser.add_mutually_exclusive_group(required=True)
    job.add_argument("--against", metavar="BASELINE", help="a stored baseline's name or JSON file, or a run's folder")
    job.add_argument("--save", metavar="NAME", help="store RUN as results/baselines/NAME.json (or as NAME.json)")
    add("--tolerance", type=_share, default=TOLERANCE, metavar="T", help="loss that is allowed, 0.05 by default (5 %%)")
    add("--strategy", action="append", default=[], metavar="NAME", help="compare this one only; may be repeated")
    add("--common", action="store_true", help="compare the prompts that both have, instead of refusing")
    add("--only", choices=["acceptance", "speed"], help="compare acceptance and answers alone, or speed alone")
    add("--absolute", action="store_true", help="compare token/s too; refused between two machines")
    add("--format", choices=["text", "json", "github"], default="text", help="text by default")
    return parser


def _share(value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found < 0.5:
        raise argparse.ArgumentTypeError(f"{value}: must be a share from 0 to below 0.5, such as 0.05")
    return found


def _save(asked: argparse.Namespace) -> int:
    result = read(asked.run)
    file = save(asked.save, result)
    failed = sum(answer.failed for answer in result.answers)
    print(f"{len(result.answers)} answers of {len(result.about.strategies)} strategies in {file}")
    if failed:
        print(f"gate: {failed} cells of {asked.run} failed; as many may fail in every candidate", file=sys.stderr)
    return 0


def _compare(asked: argparse.Namespace) -> int:
    options = Options(asked.tolerance, asked.strategy, asked.common, asked.only, asked.absolute)
    comparison = compare(read(asked.run), read(asked.against), options)
    if asked.format == "json":
        print(as_json(comparison))
    else:
        print(text(comparison))
    if asked.format == "github":
        print(annotations(comparison))
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            _append(summary, markdown(comparison))
    return comparison.verdict.exit_status


def _append(summary: str, text: str) -> None:
    """A job summary that cannot be written changes no verdict."""
    try:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        reason = f"cannot be written ({error.strerror}), so the job has no summary; the verdict stands"
        print(f"gate: GITHUB_STEP_SUMMARY={summary}: {reason}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
