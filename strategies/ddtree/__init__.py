"""DDTree: a DFlash drafter's slots grow a best-first draft tree of a node budget (arXiv 2604.12989)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from harness.errors import UserError
from strategies.base import TargetView
from strategies.ddtree.proposer import AUTO, TreeProposer

# What a run with budget=auto measures beside it; the one of conf/strategy/ddtree.yaml.
FIXED_BUDGET = 15

# vLLM's stock sampler, which serves requests that fall back to a chain, verifies no more than this many tokens.
LARGEST_BUDGET_ON_VLLM = 128


def build(target: TargetView, name: str, drafter: str, budget: int | Literal["auto"], vllm_full_graphs: bool = True) -> TreeProposer:
    """``vllm_full_graphs`` speaks to vLLM alone: here ``engine.captured_graphs`` captures whole rounds."""
    from strategies.dflash.checkpoint import load_drafter

    return TreeProposer(load_drafter(drafter, target), target, budget)


def companions(budget: int | Literal["auto"], **options) -> dict[str, dict]:
    """A budget picked by measured costs never stands alone: with it the fixed one is measured."""
    return {"fixed": {**options, "budget": FIXED_BUDGET}} if budget == AUTO else {}


def vllm_arguments(
    target: Path, device: str, name: str, drafter: str, budget: int | Literal["auto"], vllm_full_graphs: bool = True
) -> dict:
    """vLLM's own DFlash with this project's plugin, which turns its blocks into trees.

    A CPU captures nothing, and a tree smaller than a block is no pass that vLLM would capture whole: ``vllm_full_graphs`` is about others.
    """
    from strategies.dflash.checkpoint import find_drafter

    if budget == AUTO:
        fixed = f"a whole number from 1 to {LARGEST_BUDGET_ON_VLLM}"
        raise UserError(f"strategy.budget={AUTO}: vLLM's trees have one size, and only engine=torch measures what rounds cost; give {fixed}")
    if not isinstance(budget, int) or not 1 <= budget <= LARGEST_BUDGET_ON_VLLM:
        raise UserError(f"strategy.budget={budget} is not a node budget on vLLM; give a whole number from 1 to {LARGEST_BUDGET_ON_VLLM}")
    folder, config = find_drafter(drafter, target)
    # vLLM keeps as many cache slots for drafting as there are speculative tokens: a block must fit as well as a tree.
    places = max(budget, config.block_size - 1)
    full = vllm_full_graphs and device != "cpu" and budget == places
    return {
        "speculative_config": {"method": "dflash", "model": str(folder), "num_speculative_tokens": places},
        "worker_cls": "strategies.ddtree.vllm_plugin.worker.DDTreeWorker",
        "additional_config": {"ddtree": {"budget": budget} | ({"full_graphs": True} if full else {})},
    }


def vllm_checks(device: str) -> list:
    """What the plugin needs of the installed vLLM, for ``python -m harness.probe``."""
    from strategies.ddtree.vllm_plugin.checks import checks

    return checks(device)
