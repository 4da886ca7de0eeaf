"""The target's choice at every row of a step: its arg-max, or a sample that depends on seed and position alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from kernels import GreedyChoices, SampledChoices
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


class Choices:
    """The target's choices at all rows of a step, ``logits`` ``[rows, vocab]``: arg-maxes are read from the device once."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    @cached_property
    def _greedy(self) -> Choice:
        return GreedyChoices(self._logits[None])

    def of(self, first: int, rows: int, params, uniforms: Callable[[], Uniforms], given: int) -> Choice:
        """Those of a request whose ``rows`` rows begin at ``first``, with ``given`` tokens so far.

        ``params`` are its ``SamplingParams``; ``uniforms`` gives its numbers.
        """
        if params.temperature == 0:
            return lambda request, row, depth: self._greedy(0, first + row, depth)
        numbers = uniforms().between(given, given + rows).to(self._logits.device)
        logits = self._logits[None, first : first + rows]
        return SampledChoices(logits, numbers, params.temperature, max(params.top_k, 0), params.top_p)
