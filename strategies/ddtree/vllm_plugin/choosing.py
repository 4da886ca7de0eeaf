"""The target's choice at every row of a step: its arg-max, or a sample that depends on seed and position alone."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from kernels import GreedyChoices, SampledChoices
from kernels.acceptance import Choices
from strategies.ddtree.vllm_plugin.plan import Planned

_DRAWN_AT_ONCE = 256


class Uniforms:
    """A request's numbers in [0, 1), fp64, one for each output position: those of the torch engine for the same seed.

    They are drawn on the host and sent to ``device``, many at once.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._drawn = torch.empty(1, 0, dtype=torch.float64, device=device)

    def between(self, first: int, end: int) -> Tensor:
        """``[1, end - first]``."""
        while self._drawn.shape[1] < end:
            more = torch.rand(1, _DRAWN_AT_ONCE, generator=self._generator, dtype=torch.float64)
            self._drawn = torch.cat([self._drawn, more.to(self._drawn.device)], dim=1)
        return self._drawn[:, first:end]


def seed_of(params, seeds: torch.Generator) -> int:
    """The seed of a request with these ``SamplingParams``, or one of ``seeds``."""
    return int(torch.randint(1 << 62, (1,), generator=seeds)) if params.seed is None else params.seed


def sampler(logits: Tensor, request: Planned, params, numbers: Uniforms, given: int) -> SampledChoices:
    """Of a request with ``given`` tokens so far, whose ``SamplingParams`` are ``params``; ``logits`` ``[rows, vocab]`` are the step's."""
    own = logits[None, request.first : request.first + request.rows]
    return SampledChoices(own, numbers.between(given, given + request.rows), params.temperature, max(params.top_k, 0), params.top_p)


class StepChoices(Choices):
    """The target's choices at the rows of a step's requests.

    ``logits`` ``[rows, vocab]`` of the whole step, ``at`` ``[requests, widest]`` the rows of each request; ``samplers`` choose
    for those, by index, that are not greedy.
    """

    def __init__(self, logits: Tensor, at: Tensor, samplers: dict[int, SampledChoices]) -> None:
        self._logits, self._at, self._samplers = logits, at, samplers

    def _greedy(self) -> Tensor:
        return GreedyChoices(self._logits[None]).at_all(None).take(self._at)

    @cached_property
    def _best(self) -> list[list[int]]:
        return self._greedy().tolist()

    def __call__(self, request: int, row: int, depth: int) -> int:
        if request in self._samplers:
            return self._samplers[request](0, row, depth)
        return self._best[request][row]

    def at_all(self, depths: Tensor) -> Tensor:
        chosen = self._greedy()
        for request, choices in self._samplers.items():
            rows = choices.rows
            chosen[request, :rows] = choices.at_all(depths[request : request + 1, :rows])[0]
        return chosen


class Chosen(Choices):
    """Choices that have been made: ``tokens`` int64 ``[requests, rows]``."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens

    def __call__(self, request: int, row: int, depth: int) -> int:
        return int(self._tokens[request, row])

    def at_all(self, depths: Tensor) -> Tensor:
        return self._tokens
