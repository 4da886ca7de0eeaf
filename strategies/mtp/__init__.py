"""Multi-token prediction: a trained head drafts a chain of k tokens from the target's last hidden state."""

from __future__ import annotations

from strategies.base import TargetView
from strategies.mtp.proposer import MTPProposer


def build(target: TargetView, name: str, drafter: str, k: int) -> MTPProposer:
    from strategies.mtp.checkpoint import load_head

    return MTPProposer(load_head(drafter, target), target, k)
