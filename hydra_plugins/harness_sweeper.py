"""Hydra's hook for a multirun. Hydra finds sweepers in this namespace package alone, which gives the folder its name."""

from __future__ import annotations

from collections.abc import Mapping

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

# Hydra's own settings that make the sweep; all others (hydra.searchpath, say) are each job's too.
_OF_THE_SWEEP = ("hydra.mode=", "hydra.sweep", "hydra/sweeper", "hydra.launcher", "hydra/launcher")


class ProcessSweeper(Sweeper):
    """Runs every combination of the values on the command line, each in a process of its own: ``harness.sweep``.

    ``params`` are overrides too, such as an experiment's; the command line's of the same key take their place.
    """

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        self._params = [f"{key}={values}" for key, values in (params or {}).items()]

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config

    def sweep(self, arguments: list[str]) -> None:
        """Ends the process with the sweep's exit status, for which Hydra has no place."""
        from harness.sweep.command import start

        loader = self.hydra_context.config_loader
        overrides = OverridesParser.create(config_loader=loader).parse_overrides([*self._params, *arguments])
        compose = lambda job: loader.load_sweep_config(self.config, list(job))  # noqa: E731
        raise SystemExit(start(overrides, self._flags(), compose))

    def _flags(self) -> list[str]:
        """What every job's command line holds beside its overrides."""
        sources = self.config.hydra.runtime.config_sources
        folders = [source.path for source in sources if source.provider == "command-line"]
        given = [o for o in self.config.hydra.overrides.hydra if not o.lstrip("+~").startswith(_OF_THE_SWEEP)]
        return [*(word for folder in folders for word in ("--config-dir", folder)), *given]
