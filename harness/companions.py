"""Arms that a strategy asks to be measured beside it.

A strategy's module may have, beside its factory, a function ``companions(name, **options)``: by suffix the options of further
arms of the same strategy, none by default. An arm ``ddtree`` with a companion ``fixed`` is measured with ``ddtree_fixed``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from omegaconf import DictConfig, open_dict


def add_companions(config: DictConfig) -> bool:
    """Add to a checked ``config`` the arms that its strategies ask for and that are not there; whether there were any."""
    strategies = {**config.arms, config.strategy.name: config.strategy}
    names = set(strategies)
    for name, strategy in list(strategies.items()):
        for suffix, options in _companions(strategy).items():
            companion = {"_target_": strategy["_target_"], **options}
            if companion not in strategies.values():
                strategies.setdefault(f"{name}_{suffix}", companion)
    added = {name: strategies[name] for name in strategies if name not in names}
    with open_dict(config):
        config.arms = {**config.arms, **added}
    return bool(added)


def _companions(strategy: DictConfig) -> dict[str, dict[str, Any]]:
    module = import_module(strategy["_target_"].rpartition(".")[0])
    options = {name: value for name, value in strategy.items() if not name.startswith("_")}
    return module.companions(**options) if hasattr(module, "companions") else {}
