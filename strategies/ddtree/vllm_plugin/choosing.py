"""The target's choice at every row of a step: its arg-max, or a sample that depends on seed and position alone."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import greedy_choice, sampled_choice
from kernels.acceptance import Choice

_DRAWN_AT_ONCE = 256


class Uniforms:
    """A request's numbers in [0, 1), fp64, one for each output position: those of the torch engine for the same seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._drawn = torch.empty(1, 0, dtype=torch.float64)

    def between(self, first: int, end: int) -> Tensor:
        """``[1, end - first]``."""
        while self._drawn.shape[1] < end:
            more = torch.rand(1, _DRAWN_AT_ONCE, generator=self._generator, dtype=torch.float64)
            self._drawn = torch.cat([self._drawn, more], dim=1)
        return self._drawn[:, first:end]


def choice(logits: Tensor, params, uniforms: Uniforms, given: int, depth: int) -> Choice:
    """What the target chooses at rows of ``logits`` ``[1, rows, vocab]`` of a request with ``given`` tokens so far.

    ``params`` are its ``SamplingParams``; ``depth`` is its tree's.
    """
    if params.temperature == 0:
        return greedy_choice(logits)
    numbers = uniforms.between(given, given + depth + 1).to(logits.device)
    return sampled_choice(logits, numbers, params.temperature, max(params.top_k, 0), params.top_p)
