"""From logits to a token: temperature, top-k, top-p, and inversion of the cumulative distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.device import on_gpu
from kernels.native import layers as native

_BLOCK, _SMALLEST_BLOCK = 256, 16


def probabilities(logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """``logits`` ``[..., vocab]`` -> fp64 probabilities after temperature, then top-k, then top-p (0 and 1: off).

    top-k keeps every token that equals the k-th; top-p keeps the fewest likeliest tokens whose sum reaches p, at least
    one (Holtzman et al., arXiv 1904.09751).
    """
    logits = logits.double()
    # The best at 0: whatever the temperature, it stays finite, and no infinity is taken from another.
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    if 0 < top_k < logits.shape[-1]:
        kth = logits.topk(top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    chances = logits.softmax(dim=-1)
    if top_p < 1.0:
        ordered, ids = chances.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        ordered = ordered.masked_fill(before >= top_p, 0.0)
        chances = torch.zeros_like(chances).scatter(-1, ids, ordered)
        chances = chances / chances.sum(dim=-1, keepdim=True)
    return chances


def likeliest(logits: Tensor) -> Tensor:
    """Ids ``[...]`` of the largest of ``logits`` ``[..., vocab]``, of equal ones the smallest.

    Best block first, then best in the block: a CPU compares bf16 one by one for an arg-max, but many at once for a maximum.
    """
    vocab = logits.shape[-1]
    block = math.gcd(vocab, _BLOCK)
    if logits.is_cuda or block < _SMALLEST_BLOCK:
        return logits.argmax(dim=-1)
    blocks = logits.unflatten(-1, (vocab // block, block))
    best = blocks.amax(dim=-1).argmax(dim=-1, keepdim=True)
    within = blocks.take_along_dim(best[..., None], dim=-2).squeeze(-2)
    return (best * block).squeeze(-1) + within.argmax(dim=-1)


def likeliest_with_logprob(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Of ``logits`` ``[rows, vocab]`` or ``[batch, rows, vocab]`` the likeliest ids, of equal ones the smallest, and their
    log-probabilities in fp32, each without the last axis."""
    if on_gpu(logits):
        from kernels.triton_kernels import greedy

        ids, logprobs = greedy.likeliest_with_logprob(logits if logits.dim() == 3 else logits[None])
        return ids.view(logits.shape[:-1]), logprobs.view(logits.shape[:-1])
    found = native.candidates(logits.flatten(0, -2), 1)
    if found is not None:
        logprobs, ids = (each.view(logits.shape[:-1]) for each in found)
        return ids, logprobs
    best = logits.float().log_softmax(dim=-1).max(dim=-1)
    return best.indices, best.values


def draw(chances: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulative sum of ``chances`` ``[..., vocab]`` passes ``uniform`` ``[...]`` in [0, 1)."""
    cumulative = chances.cumsum(dim=-1)
    # Scaling by the sum as computed keeps rounding from ever pointing past the last possible token.
    target = uniform.to(cumulative)[..., None] * cumulative[..., -1:]
    return torch.searchsorted(cumulative, target, right=True).clamp(max=chances.shape[-1] - 1).squeeze(-1)
