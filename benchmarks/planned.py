"""A run's configuration and plan for the scripts here, from the same overrides as ``python -m harness`` takes."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, open_dict

from harness.command import CONFIGURATION
from harness.schemas import Plan, read


def plan_of(options: Sequence[str]) -> Plan:
    return read(configuration(options))


def configuration(options: Sequence[str]) -> DictConfig:
    with initialize_config_dir(str(CONFIGURATION), version_base="1.3"):
        config = compose("config", list(options))
    with open_dict(config):
        config.pop("resume", None)
    return config
