"""``python -m harness``: how much faster is a decoding strategy, and does it still say the same?"""

from __future__ import annotations

import sys
from typing import Any

INTERRUPTED = "interrupted before anything was measured"


def main() -> int:
    """Run the command line; the exit status is what is returned."""
    try:
        from harness.command import command  # takes a moment, in which a Ctrl-C can come

        return command("harness", "config", _run, INTERRUPTED)
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130


def _run(config: Any) -> int:
    from harness.run import run  # late, so that --help and --cfg load nothing heavy

    return run(config)


if __name__ == "__main__":
    sys.exit(main())
