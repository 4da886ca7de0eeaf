"""Linear DFlash: a block-diffusion drafter proposes a chain, the target verifies it (arXiv 2602.06036)."""

from __future__ import annotations

from strategies.base import TargetView
from strategies.dflash.proposer import ChainProposer


def build(target: TargetView, name: str, drafter: str) -> ChainProposer:
    from strategies.dflash.checkpoint import load_drafter

    return ChainProposer(load_drafter(drafter, target), target)
