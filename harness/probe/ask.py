"""Finds an engine's own questions and a strategy's, by their configurations."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness.errors import UserError
from harness.options import choose
from harness.probe.rows import Row

_CONFIGURATION = Path(__file__).resolve().parent.parent.parent / "conf"


def ask(engine: str, strategy: str) -> list[Row]:
    """The engine's rows for the strategy, most important first. Raises ``UserError`` for an unknown name."""
    questions = f"{_configuration('engine', engine)['_target_'].rpartition('.')[0]}.probe"
    try:
        module = import_module(questions)
    except ModuleNotFoundError as error:
        if error.name != questions:
            raise
        raise UserError(f"engine={engine}: there is nothing to probe; probe engine=vllm or engine=torch") from None
    return module.rows(_configuration("strategy", strategy))


def _configuration(group: str, name: str) -> Mapping[str, Any]:
    file = _CONFIGURATION / group / f"{name}.yaml"
    if not file.is_file():
        raise UserError(f"{group}={name}: unknown; {choose(name, sorted(path.stem for path in file.parent.glob('*.yaml')))}")
    return OmegaConf.to_container(OmegaConf.load(file))
