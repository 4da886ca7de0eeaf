"""``python -m harness``: how much faster is a decoding strategy, and does it still say the same?"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import hydra
from omegaconf import DictConfig

from harness.mistakes import explain

CONFIGURATION = Path(__file__).resolve().parent.parent / "conf"
WRONG_USAGE, INTERRUPTED = 2, 130


def main() -> int:
    """Run the command line; the exit status is what is returned."""
    arguments = sys.argv[1:]
    if any(argument in ("-m", "--multirun") or argument.startswith("hydra.mode=") for argument in arguments):
        return _refuse("--multirun: sweeps are not supported; give one value a key and call it once for each")
    status, failure = 0, None

    @hydra.main(config_path=str(CONFIGURATION), config_name="config", version_base="1.3")
    def command(config: DictConfig) -> None:
        nonlocal status, failure
        from harness.run import run  # late, so that --help and --cfg load nothing heavy

        try:
            status = run(config)
        except Exception as error:  # handed past Hydra, which would print about it
            failure = error

    # Hydra would print errors over many lines and exit with 1; with this it raises them, and we say them in one.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="provider=hydra.searchpath.*")
            command()
        if failure:
            raise failure
    except KeyboardInterrupt:
        print("interrupted before anything was measured", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        line = explain(error, arguments)
        if line is None:
            raise
        return _refuse(line)
    return status


def _refuse(line: str) -> int:
    print(f"harness: {line}", file=sys.stderr)
    return WRONG_USAGE


if __name__ == "__main__":
    sys.exit(main())
