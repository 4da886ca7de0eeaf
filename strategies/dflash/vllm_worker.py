"""vLLM's own DFlash on a CPU, with one fault of its CPU build put right.

vLLM 0.32 norms the context's keys of all drafter layers in one call, with a row of weights a layer; its CPU kernel reads the
first row for every layer. Nothing crashes: drafts are worse from the second layer on. Builds whose kernel is right are left
as they are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from vllm.v1.worker.cpu_worker import CPUWorker


class DFlashCPUWorker(CPUWorker):
    """vLLM's worker; ``speculative_config.method`` is ``dflash``."""

    def load_model(self, *args, **kwargs) -> None:
        super().load_model(*args, **kwargs)
        repair_key_norms(self.model_runner.drafter.model.model)


@torch.inference_mode()
def repair_key_norms(drafter) -> bool:
    """Have every layer's context keys normed with its own weights, if they are not; whether there was anything to do."""
    if not hasattr(drafter, "_normalize_context_k"):  # as in 0.20, where each layer is normed by itself
        return False
    weights, eps = drafter._k_norm_weights, drafter._rms_norm_eps

    def each_layer(keys: torch.Tensor) -> torch.Tensor:
        """``keys`` ``[layers, rows, kv_heads, head_dim]``."""
        return torch.stack([F.rms_norm(key, key.shape[-1:], weight, eps) for key, weight in zip(keys, weights, strict=True)])

    shape = (len(weights), 1, drafter._num_kv_heads, drafter._head_dim)
    sample = torch.linspace(-1, 1, drafter._num_kv_heads * drafter._head_dim).expand(shape[0], -1).reshape(shape).to(weights[0])
    if torch.allclose(drafter._normalize_context_k(sample.contiguous()), each_layer(sample), rtol=0.05, atol=0.05):
        return False
    drafter._normalize_context_k = each_layer
    return True
