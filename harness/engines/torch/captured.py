"""One captured graph a round: recorded once on a GPU, replayed for every round of every batch of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch

from harness.engines.torch.rounds import Rounds, needed_capacity
from harness.models.dense import DenseModel
from harness.records import Request, Sampling
from strategies.base import Proposer

_WARM_UP_ROUNDS = 2
_CAPACITY_STEP = 1024


class CapturedRounds(Rounds):
    """``Rounds`` whose ``step`` replays a graph. ``sampling`` is what its rounds choose by; its seed and limit do not count.

    Rounds of all sizes share ``pool``, the memory of what lives within a round: they never run at the same time.
    """

    def __init__(self, *sizes, sampling: Sampling, pool) -> None:
        super().__init__(*sizes)
        self.begin([[0]] * self.batch, sampling, [0] * self.batch)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles kernels and sets up libraries, neither of which can be captured
            for _ in range(_WARM_UP_ROUNDS):
                super().step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            super().step()

    def step(self) -> None:
        self._graph.replay()


class CapturedPool:
    """Captured rounds by strategy, batch size and way of choosing; captured anew for requests that need more positions."""

    def __init__(self, model: DenseModel) -> None:
        self._model, self._memory = model, torch.cuda.graph_pool_handle()
        self._captured: dict[tuple, CapturedRounds] = {}

    @torch.inference_mode()
    def of(self, strategy: str, proposer: Proposer, requests: Sequence[Request]) -> CapturedRounds:
        """Rounds with room for ``requests``, which share their sampling but for seed and limit."""
        sampling, round_times = requests[0].sampling, requests[0].round_times
        key = strategy, len(requests), sampling.temperature, sampling.top_k, sampling.top_p, round_times
        needed = needed_capacity(self._model, proposer, requests)
        found = self._captured.get(key)
        if found is None or found.capacity < needed:
            self._captured.pop(key, None)
            capacity = -(-needed // _CAPACITY_STEP) * _CAPACITY_STEP
            # A copy for its own state: rounds of other sizes keep theirs. The drafter's weights are the same.
            sizes = self._model, copy(proposer), len(requests), capacity, round_times
            self._captured[key] = found = CapturedRounds(*sizes, sampling=sampling, pool=self._memory)
        return found
