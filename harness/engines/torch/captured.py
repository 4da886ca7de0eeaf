"""Captured rounds: recorded once on a GPU, replayed for every round of every batch of the same size.

A round is one graph. Where a strategy's trees are cut to the size that pays, it is the draft and then one of several
verifications, a graph for each size: the device decides which where it can, elsewhere the host reads it between them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from functools import partial

import torch

from harness.engines.torch.costs import measure
from harness.engines.torch.rounds import Rounds, needed_capacity
from harness.engines.torch.tree_size import CostTable
from harness.models.dense import DenseModel
from harness.records import Request, Sampling
from kernels import Recorded, Switched, can_switch
from strategies.base import Proposer

_CAPACITY_STEP = 1024


class CapturedRounds(Rounds):
    """``Rounds`` that replay graphs. ``sampling`` is what they choose by; its seed and limit do not count.

    Rounds of all sizes share ``pool``, the memory of what lives within a round: they never run at the same time, and the trees
    of a draft are held for its verification. ``costs`` are those of such graphs, ``None`` where trees are not cut.
    """

    def __init__(self, *sizes, sampling: Sampling, pool) -> None:
        self._pool = pool
        self._graphs: dict[Hashable, Callable[[], None]] = {}
        super().__init__(*sizes)
        self.costs: CostTable | None = None
        if self.size is None:
            self.begin([[0]] * self.batch, sampling, [0] * self.batch)
            self._graphs["round"] = Recorded(self._whole, pool)
            return
        self.costs = measure(self, sampling, self.size.contexts)
        self.size.learn(self.costs)
        for rows in self.costs.rows:
            self.verify(rows)
        if can_switch():
            self._graphs["round"] = Switched(self._graphs["draft"], self.size.number, [self._graphs[rows] for rows in self.costs.rows])

    def limit(self, rows: int) -> None:
        """While costs are measured, before the graphs become one."""
        super().limit(rows)
        self._graphs.clear()  # trees of another size are other tensors

    def step(self) -> None:
        if "round" in self._graphs:
            self._graphs["round"]()
        else:
            super().step()

    def draft(self) -> None:
        self._replay("draft", super().draft)

    def verify(self, rows: int | None) -> None:
        self._replay(rows, partial(super().verify, rows))

    def _whole(self) -> None:
        super().draft()
        super().verify(None)

    def _replay(self, part: Hashable, work: Callable[[], None]) -> None:
        """Recorded when it is first asked for, which is before any request."""
        if part not in self._graphs:
            self._graphs[part] = Recorded(work, self._pool)
        self._graphs[part]()


class CapturedPool:
    """Captured rounds by strategy, batch size and way of choosing; captured anew for requests that need more positions.

    ``measured`` lists what their graphs cost, each table with its strategy.
    """

    def __init__(self, model: DenseModel) -> None:
        self._model, self._memory = model, torch.cuda.graph_pool_handle()
        self.measured: list[tuple[str, CostTable]] = []
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
            if found.costs is not None:
                self.measured.append((strategy, found.costs))
        return found
