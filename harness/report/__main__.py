"""``python -m harness.report``: a run, or several, as a notebook and as one HTML page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.arguments import Parser
from harness.errors import UserError

WRONG_USAGE, INTERRUPTED = 2, 130

EXAMPLES = """\
examples:
  python -m harness.report results/runs/RUN                      report.ipynb and report.html in the run's folder
  python -m harness.report results/runs/RUN --output docs/report
  python -m harness.report results/runs/A results/runs/B --output compared     several runs side by side
  python -m harness.report results/sweeps/SWEEP                  all jobs of a sweep that are done

needs the report extra: python -m pip install -c constraints.txt -e '.[report]'
exit status: 0 written, 2 wrong usage or unreadable run. See docs/report.md.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is what is returned."""
    try:
        asked = _parser().parse_args(arguments)
        from harness.report.command import make  # late, so that --help loads nothing heavy

        file = make(asked.run, asked.output)
    except UserError as error:
        print(f"report: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_USAGE
    except KeyboardInterrupt:
        print("report: interrupted", file=sys.stderr)
        return INTERRUPTED
    print(file)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m harness.report",
        description="Write the report of one run or several: a notebook, and one HTML file that needs nothing else.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", nargs="+", metavar="RUN", help="a run's folder, or a sweep's")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where the report goes; the folder that was given by default")
    return parser


if __name__ == "__main__":
    sys.exit(main())
