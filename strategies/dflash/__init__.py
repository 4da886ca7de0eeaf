"""Linear DFlash: a block-diffusion drafter proposes a chain, the target verifies it (arXiv 2602.06036)."""

from __future__ import annotations

from pathlib import Path

from strategies.base import TargetView
from strategies.dflash.proposer import ChainProposer


def build(target: TargetView, name: str, drafter: str) -> ChainProposer:
    from strategies.dflash.checkpoint import load_drafter

    return ChainProposer(load_drafter(drafter, target), target)


def vllm_arguments(target: Path, device: str, name: str, drafter: str) -> dict:
    """vLLM's own DFlash, on the same checkpoint, with known faults of some versions put right."""
    from strategies.dflash.checkpoint import find_drafter

    folder, config = find_drafter(drafter, target)
    return {
        "speculative_config": {"method": "dflash", "model": str(folder), "num_speculative_tokens": config.block_size - 1},
        "worker_cls": "strategies.dflash.vllm_worker.DFlashWorker",
    }
