"""``python -m harness.serve strategy=ddtree``: the engine's own server for a strategy, printed and run."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.command import command
from harness.errors import UserError
from harness.options import check_options, said
from harness.schemas import ENGINE_IS_GIVEN, STRATEGY_IS_GIVEN, ModelConfig, fill


@dataclass(frozen=True)
class ServerCommand:
    """``words`` as a shell would split them; ``variables`` go into the environment beside what is there."""

    words: tuple[str, ...]
    variables: Mapping[str, str]

    def __str__(self) -> str:
        """One line for a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join([*variables, shlex.join(self.words)])


def main() -> int:
    """Run the command line; the exit status is what is returned."""
    return command("harness.serve", "serve", run, "interrupted before the server started")


def run(config: DictConfig) -> int:
    """Print the command; without ``dry_run`` become the server."""
    found = server_command(config)
    if config.dry_run:
        print(found)
        return 0
    print(found, file=sys.stderr, flush=True)
    try:
        os.execvpe(found.words[0], found.words, {**os.environ, **found.variables})
    except OSError as error:
        way_out = f"install engine={config.engine.name} into this environment"
        raise UserError(f"{found.words[0]}: cannot be started ({error.strerror}); {way_out}") from error


def server_command(config: DictConfig) -> ServerCommand:
    """The command of the configured engine. An engine that can serve has a module ``serving`` in its ``_target_``'s package.

    Raises ``UserError`` for one that has none, and for options that the engine or the strategy does not have.
    """
    if not isinstance(config.port, int) or not 1 <= config.port <= 65535:
        raise UserError(f"port={config.port}: must be a whole number from 1 to 65535")
    for group in ("engine", "strategy", "model"):
        if not isinstance(config[group], DictConfig):
            raise UserError(f"{group}={said(config[group])}: is a group of keys, not a value; leave it out or name a choice")
    check_options("engine", config.engine, ENGINE_IS_GIVEN)
    check_options("strategy", config.strategy, STRATEGY_IS_GIVEN)
    fill(ModelConfig, "model", config.model)
    package = config.engine._target_.rpartition(".")[0]
    if find_spec(f"{package}.serving") is None:
        raise UserError(f"engine={config.engine.name}: has no server; take engine=vllm")
    options: dict[str, Any] = {k: v for k, v in OmegaConf.to_container(config.engine).items() if k not in ("_target_", "name")}
    serving = import_module(f"{package}.serving")
    return ServerCommand(*serving.command(config.model, config.strategy, options, str(config.host), config.port))


if __name__ == "__main__":
    sys.exit(main())
