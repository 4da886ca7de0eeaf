"""From the options of ``conf/engine/vllm.yaml`` to settings with nothing left open."""

from __future__ import annotations

import torch

from harness.engines.torch.device import DTYPES, pick_device, pick_dtype
from harness.engines.vllm.arguments import Settings, usable_cores


def choose_settings(
    dtype: str,
    context_length: int,
    device: str = "auto",
    threads: int | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 4096,
    kv_cache_gib: float = 1.0,
    gpu_memory_utilization: float = 0.9,
    enforce_eager: bool | None = None,
) -> tuple[Settings, torch.dtype]:
    """``dtype`` and ``context_length`` are the model's. Raises ``UserError`` for a device or dtype that there is not."""
    found = pick_device(device)
    chosen = pick_dtype(dtype, found)
    settings = Settings(
        device=found.type,
        dtype=next(name for name, value in DTYPES.items() if value == chosen),
        threads=threads or usable_cores(),
        max_model_len=min(context_length, max_model_len or context_length),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_gib=kv_cache_gib,
        gpu_memory_utilization=gpu_memory_utilization,
        enforce_eager=found.type == "cpu" if enforce_eager is None else enforce_eager,
    )
    return settings, chosen
