"""What rounds cost on this machine: measured on rounds of no request, once for each batch size, before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from statistics import median

import torch

from harness.engines.torch.device import seconds_of
from harness.engines.torch.rounds import Rounds, needed_capacity
from harness.engines.torch.tree_size import CostTable, contexts_to
from harness.models.dense import DenseModel
from harness.records import Request, Sampling
from strategies.base import Proposer

_PASSES = 3  # of which the median counts, after one that does not
_ENOUGH_S = 0.2  # of them over one number of rows
# A round that costs more than so many times the first with room for a whole path pays too seldom to grow its nodes every time:
# 64 rows promise a quarter more tokens than 8 (mean of 244 rounds, 12 prompts of Spec-Bench, the shipped drafter).
_MOST_TIMES = 1.25


class RoundCosts:
    """The tables of eager rounds, one for each strategy and batch size; it grows with the contexts that requests reach, at
    each of which the smallest and the largest trees are timed, at the first one all sizes.

    ``measured`` lists what was measured as it comes, each table with its strategy.
    """

    def __init__(self, model: DenseModel) -> None:
        self._model = model
        self._tables: dict[tuple[str, int], CostTable] = {}
        self.measured: list[tuple[str, CostTable]] = []

    def table(self, strategy: str, proposer: Proposer, requests: Sequence[Request]) -> CostTable:
        """Costs of rounds of ``requests``, up to the longest context that one can reach; measured where they are not known."""
        key = strategy, len(requests)
        reach = needed_capacity(self._model, proposer, requests) - proposer.slack
        wanted = contexts_to(reach, self._model.config.context_length)
        known = self._tables.get(key)
        for context in wanted:
            if known is None or context not in known.contexts:
                rounds = Rounds(self._model, copy(proposer), len(requests), context + proposer.slack, round_times=False)
                found = measure(rounds, requests[0].sampling, [context], known and sorted({known.rows[0], known.rows[-1]}))
                self.measured.append((strategy, found))
                known = self._tables[key] = known.joined(found) if known else found
        return known


@torch.inference_mode()
def measure(
    rounds: Rounds, sampling: Sampling, contexts: Sequence[int], rows: Sequence[int] | None = None
) -> CostTable:
    """Time ``rounds`` behind ``contexts`` positions with ``rows`` rows a tree; what the caches hold afterwards means nothing.

    ``rows`` None: the proposer's ladder, up to the last size that is not too dear; larger trees are then not grown either.
    """
    draft_s, verify_s = [], []
    proposer, ladder = rounds.proposer, rounds.proposer.ladder
    rounds.begin([[0]] * rounds.batch, sampling, [0] * rounds.batch)
    if rows is not None:
        rounds.limit(rows[-1])

    for context in contexts:
        draft_s.append(_seconds(rounds, context, lambda: rounds.draft()))
        sizes: list[float] = []
        for size in rows or ladder:
            sizes.append(_seconds(rounds, context, lambda size=size: rounds.verify(size)))
            if rows is None and _too_dear(proposer, draft_s[-1], sizes):
                sizes.pop()
                break
        verify_s.append(tuple(sizes))
        if rows is None:
            rows = ladder[: len(sizes)]
            if rows != ladder:
                rounds.limit(rows[-1])
                draft_s[-1] = _seconds(rounds, context, lambda: rounds.draft())
    return CostTable(rounds.batch, tuple(contexts), tuple(rows), tuple(draft_s), tuple(verify_s))


def _too_dear(proposer: Proposer, draft_s: float, verify_s: Sequence[float]) -> bool:
    with_path = [seconds for seconds, rows in zip(verify_s, proposer.ladder) if rows >= proposer.longest]
    return bool(with_path) and draft_s + with_path[-1] > _MOST_TIMES * (draft_s + with_path[0])


def _seconds(rounds: Rounds, context: int, work: Callable[[], None]) -> float:
    """Median time of ``work``, each time behind ``context`` positions, after a first time that compiles and captures."""
    found: list[float] = []
    for number in range(1 + _PASSES):
        rounds.cache.lengths.fill_(context)
        seconds = seconds_of(work, rounds.cache.lengths.device)
        if number:
            found.append(seconds)
        if sum(found) > _ENOUGH_S:
            break
    return median(found)
