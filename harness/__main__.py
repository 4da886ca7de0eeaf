"""``python -m harness``: how much faster is a decoding strategy, and does it still say the same?"""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from harness.command import command


def main() -> int:
    """Run the command line; the exit status is what is returned."""
    return command("harness", "config", _run, "interrupted before anything was measured")


def _run(config: DictConfig) -> int:
    from harness.run import run  # late, so that --help and --cfg load nothing heavy

    return run(config)


if __name__ == "__main__":
    sys.exit(main())
