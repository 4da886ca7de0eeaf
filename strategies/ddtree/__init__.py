"""DDTree: a DFlash drafter's slots grow a best-first draft tree of a node budget (arXiv 2604.12989)."""

from __future__ import annotations

from strategies.base import TargetView
from strategies.ddtree.proposer import TreeProposer


def build(target: TargetView, name: str, drafter: str, budget: int) -> TreeProposer:
    from strategies.dflash.checkpoint import load_drafter

    return TreeProposer(load_drafter(drafter, target), target, budget)
