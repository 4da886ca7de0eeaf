"""Multi-token prediction: a trained head drafts a chain of k tokens from the target's last hidden state."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UserError
from strategies.base import TargetView
from strategies.mtp.proposer import MTPProposer


def build(target: TargetView, name: str, drafter: str, k: int) -> MTPProposer:
    from strategies.mtp.checkpoint import load_head

    return MTPProposer(load_head(drafter, target), target, k)


NATIVE = "native"
# How published configurations say that a model has heads of its own.
_HEADS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


def vllm_arguments(target: Path, device: str, name: str, drafter: str, k: int) -> dict:
    """The heads that the target's own files hold, which are all that vLLM runs."""
    from strategies.checkpoint import read_json

    config = read_json(target / "config.json", "target")
    sizes = {**(config.get("text_config") or {}), **config}
    models = "a model with heads of its own (MiMo, DeepSeek-V3, GLM-4.5, Qwen3-Next, Qwen3.5)"
    if drafter != NATIVE:
        raise UserError(
            f"strategy.drafter={drafter}: vLLM runs only a model's own MTP heads, and this one is a checkpoint beside the model; "
            f"use strategy.drafter={NATIVE} with {models}, or engine=torch"
        )
    if not any(sizes.get(heads) for heads in _HEADS):
        missing = f"{target.name} has no MTP heads ({_HEADS[0]} is missing)"
        raise UserError(f"strategy.drafter={NATIVE}: {missing}; take {models}, or engine=torch")
    return {"speculative_config": {"method": "mtp", "num_speculative_tokens": k}}
