"""A run's configuration and plan for the scripts here, from the same overrides as ``python -m harness`` takes."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, open_dict

from harness.command import CONFIGURATION
from harness.decoding import request_of
from harness.records import Request
from harness.schemas import Plan, read


def plan_of(options: Sequence[str]) -> Plan:
    return read(configuration(options))


def first_turn(engine, plan: Plan, row, round_times: bool) -> Request:
    """A suite row's first turn, as ``plan`` samples it."""
    return request_of(engine, [{"role": "user", "content": row.turns[0]}], plan.sampling, round_times)


def configuration(options: Sequence[str]) -> DictConfig:
    with initialize_config_dir(str(CONFIGURATION), version_base="1.3"):
        config = compose("config", list(options))
    with open_dict(config):
        config.pop("resume", None)
    return config
