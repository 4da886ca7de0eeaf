"""A batch between rounds, on the device, and the step from one round to the next: propose, verify, accept, commit.

Shapes are fixed and nothing is read back within a round, so that a GPU can replay it as one captured graph. Where a strategy's
trees are cut to the size that pays, one number is read back between draft and verification: how many rows that is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.engines.torch.round_clock import RoundClock
from harness.engines.torch.tree_size import CostTable, TreeSize, contexts_to
from harness.models.dense import DenseModel
from harness.records import Request, Sampling
from kernels import TOLD, GreedyChoices, Rows, SampledChoices, accepted_path, on_gpu, row_mask, settle
from kernels.acceptance import Choices
from strategies.base import Proposer


class Rounds:
    """``begin`` prefills a batch of prompts, every ``step`` is a round, whose ``report`` says what it gave (``kernels.settle``).

    A request that has what it wants goes on with the batch; nobody listens to it. ``capacity`` positions are enough for a
    request's prompt, its answer and what its last rounds touch behind it; one that would go beyond them stands still.
    ``costs`` is what trees are cut by where the proposer has a ladder; without it they stay whole until ``size`` learns it.
    """

    def __init__(
        self, model: DenseModel, proposer: Proposer, batch: int, capacity: int, round_times: bool, costs: CostTable | None = None
    ) -> None:
        device = model.embed.weight.device
        self.model, self.proposer = model, proposer
        self.batch, self.capacity = batch, capacity
        self.clock = RoundClock(device, round_times, capacity)
        self.cache = model.new_cache(batch, capacity)
        self._requests = torch.arange(batch, device=device)
        self._places = torch.arange(proposer.longest, device=device)
        self._bonus, self._given = torch.zeros(2, batch, dtype=torch.int64, device=device)
        self._uniforms = torch.zeros(batch, capacity, dtype=torch.float64, device=device)
        self.report = torch.zeros(batch, TOLD + proposer.longest, dtype=torch.int64, device=device)
        self.reach = capacity - proposer.slack
        self.size: TreeSize | None = None
        if proposer.ladder:
            self.size = TreeSize(proposer.ladder, costs.contexts if costs else contexts_to(self.reach, self.reach), device)
            self.limit((costs or self.size).rows[-1])
            if costs:
                self.size.learn(costs)

    def limit(self, rows: int) -> None:
        """Let drafts grow trees of at most ``rows`` rows from now on."""
        self.proposer.limit(rows)

    def begin(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]) -> list[int]:
        """Forget what was, read the prompts, and give each request's first token. Request b samples with ``seeds[b]``."""
        device, longest = self._bonus.device, max(map(len, prompts))
        self._sampling = sampling
        if sampling.temperature:
            self._uniforms.copy_(torch.cat([uniforms(seed, self.capacity) for seed in seeds]))
        self.cache.clear()
        self.clock.reset()
        self.proposer.reset(self.batch, self.capacity)
        tokens = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        positions = torch.arange(longest, device=device).expand_as(tokens)
        hidden, features = self.model(tokens, positions, self.cache, taps=self.proposer.taps)
        self._given.zero_()
        choose = self._choices(self.model.logits(hidden[self._requests, lengths - 1])[:, None])
        first = choose.at_all(self._given[:, None])[:, 0]
        self._bonus.copy_(first)
        self.proposer.commit(tokens, features, self.cache.lengths, lengths)
        self.cache.lengths.copy_(lengths)
        self._given.fill_(1)
        return first.tolist()

    def step(self) -> None:
        """One round. What it gave is in ``report``."""
        self.draft()
        self.verify(self.rows_to_verify())

    def draft(self) -> None:
        """The first half: grow trees, and pick how many of their rows are worth verifying."""
        cache, proposer, clock = self.cache, self.proposer, self.clock
        clock.begin()
        proposer.drafting_done = lambda: clock.mark("draft")
        self._tree = proposer.propose(self._bonus, cache.lengths)
        del proposer.drafting_done
        if self.size is not None:
            self.size.pick(self._tree, cache.lengths)
        clock.mark("build")

    def rows_to_verify(self) -> int | None:
        """Between the halves: the rows that were picked; ``None``: whole trees."""
        return None if self.size is None else self.size.picked()

    def verify(self, rows: int | None) -> None:
        """The second half, with the first ``rows`` rows of the trees; ``None``: with all."""
        cache, proposer, clock = self.cache, self.proposer, self.clock
        tree = self._tree if rows is None else self._tree.first(rows)
        visible = Rows(cache.lengths, row_mask(tree.parents) if tree.rows > 1 else None)
        hidden, features = self.model(tree.tokens, cache.lengths[:, None] + tree.depths, cache, visible, proposer.taps)
        choose = self._choices(self.model.logits(hidden))
        path, kept, bonus = accepted_path(tree.tokens, tree.parents, tree.depths, choose, min(proposer.longest, tree.rows))
        clock.mark("verify")

        ended = tree.tokens, tree.depths, path, kept, bonus
        tokens, kept = settle(*ended, cache.lengths, self.reach, self._given, self._bonus, self.report)
        most = path.shape[1] if on_gpu(path) else int(kept.max())
        tokens, path = tokens[:, :most], path[:, :most]
        features = features.gather(1, path[..., None].expand(-1, -1, features.shape[-1]))
        proposer.commit(tokens, features, cache.lengths, kept)
        cache.keep(path, kept)
        clock.mark("commit")

    def _choices(self, logits: Tensor) -> Choices:
        sampling = self._sampling
        if sampling.temperature == 0:
            return GreedyChoices(logits)
        ahead = (self._given[:, None] + self._places).clamp(max=self.capacity - 1)
        return SampledChoices(logits, self._uniforms.gather(1, ahead), sampling.temperature, sampling.top_k, sampling.top_p)


def needed_capacity(model: DenseModel, proposer: Proposer, requests: Sequence[Request]) -> int:
    """Positions that the longest of the requests can reach, those that its last rounds may touch behind it included."""
    context = model.config.context_length
    longest = max(min(len(r.prompt_ids) + r.sampling.max_new_tokens, context) for r in requests)
    return longest + proposer.slack


def uniforms(seed: int, count: int) -> Tensor:
    """One number in [0, 1) for each output position, ``[1, count]`` fp64: a function of the seed alone."""
    return torch.rand(1, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
