"""What a target pass has to move through memory, and how fast this machine moves memory at all."""

from __future__ import annotations

import time

import torch

from harness.models.config import ModelConfig
from harness.models.dense import DenseModel

COPIED_BYTES, COPIED_ON_GPU = 1 << 27, 1 << 31  # a GPU takes a while to move memory at its full rate
COPIES = 5


def weight_bytes(model: DenseModel) -> int:
    """The weights that a target pass reads [byte]: all, except an embedding of which it reads a few rows only."""
    total = sum(parameter.nbytes for parameter in model.parameters())  # a tied head counts once: it is read as the head
    return total if model.config.tied_head else total - model.embed.weight.nbytes


def cache_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Keys and values of one position over all layers [byte]."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


def copy_bytes_per_s(device: torch.device) -> float:
    """Bytes read and written / time of the fastest of a few copies too large for any cache [byte/s]."""
    copied = COPIED_BYTES
    if device.type == "cuda":
        copied = min(COPIED_ON_GPU, torch.cuda.mem_get_info(device)[0] // 16)
    source = torch.zeros(copied // 8, dtype=torch.int64, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(_copy_s(source, target) for _ in range(COPIES))


def _copy_s(source: torch.Tensor, target: torch.Tensor) -> float:
    if source.is_cuda:  # the device's own clock: a launch from the host takes a sixth as long as the copy
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(source.device):
            begin.record()
            for _ in range(COPIES):
                target.copy_(source)
            end.record()
            end.synchronize()
        return begin.elapsed_time(end) / 1000 / COPIES
    begun = time.perf_counter()
    target.copy_(source)
    return time.perf_counter() - begun
