"""From a command line to a run: Hydra composes, and whatever is wrong is said in one line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser  # the flags that hydra.main will read
from omegaconf import DictConfig

from harness.errors import UserError
from harness.mistakes import explain
from harness.pipe import ends_with_its_reader

CONFIGURATION = Path(__file__).resolve().parent.parent / "conf"
WRONG_USAGE, INTERRUPTED = 2, 130


def command(
    program: str, config_name: str, run: Callable[[DictConfig], int], interrupted: str, sweeps: bool = False
) -> int:
    """Run ``run`` on the composed configuration; the exit status is what is returned. A sweep raises ``SystemExit``.

    ``sweeps`` False refuses a multirun. ``interrupted`` is what a Ctrl-C that ``run`` does not handle itself leaves behind, in a line.
    """
    try:
        arguments = sys.argv[1:] = _sorted(sys.argv[1:])
    except UserError as error:
        return _refuse(program, str(error))
    if not sweeps and any(argument in ("-m", "--multirun") or argument.startswith("hydra.mode=") for argument in arguments):
        return _refuse(program, "--multirun: sweeps are not supported; give one value a key and call it once for each")
    if other := next((a for a in arguments if a.startswith(("hydra/sweeper", "hydra/launcher"))), None):
        return _refuse(program, f"{other}: a sweep runs each job in a process of its own and in no other way; leave it out")
    status, failure = 0, None

    @hydra.main(config_path=str(CONFIGURATION), config_name=config_name, version_base="1.3")
    def composed(config: DictConfig) -> None:
        nonlocal status, failure
        try:
            status = run(config)
        except Exception as error:  # handed past Hydra, which would print about it
            failure = error

    # Hydra would print errors over many lines and exit with 1; with this it raises them, and we say them in one.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with ends_with_its_reader():
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="provider=hydra.searchpath.*")
                composed()
            if failure:
                raise failure
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        line = explain(error, arguments)
        if line is None:
            raise
        return _refuse(program, line)
    return status


def _sorted(arguments: list[str]) -> list[str]:
    """Overrides first, then Hydra's flags: it does not take them mixed. Raises ``UserError`` for a flag that it lacks."""
    parser = get_args_parser()
    parser.error = _raise
    found, flags = parser.parse_intermixed_args(arguments), list(arguments)
    if found.hydra_help:  # told of Hydra alone, without our configuration: no override fits there
        return ["--hydra-help"]
    overrides = found.overrides
    for override in overrides:
        flags.remove(override)
    return [*overrides, *flags]


def _raise(message: str) -> NoReturn:
    raise UserError(f"{message}; see python -m harness --help")


def _refuse(program: str, line: str) -> int:
    print(f"{program}: {line}", file=sys.stderr)
    return WRONG_USAGE
