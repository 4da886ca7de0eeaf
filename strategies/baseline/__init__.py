"""Plain autoregressive decoding: a round proposes nothing and its tree is the root alone."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from strategies.base import DraftTree, Proposer, TargetView


class NoProposer(Proposer):
    capturable = True

    def propose(self, bonus: Tensor, lengths: Tensor) -> DraftTree:
        return DraftTree.root(bonus)


def build(target: TargetView, name: str) -> NoProposer:
    return NoProposer()


def vllm_arguments(target: Path, device: str, name: str) -> dict:
    """Nothing: vLLM decodes plainly by itself."""
    return {}
