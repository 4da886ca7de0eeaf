"""Steps in which every request is greedy and has a whole tree: three pieces of work on fixed places, recorded once for each
number of requests and then replayed, so that a step costs the host a few calls.

    place     before the pass     trees, vLLM's positions → who sees whom, lengths, positions by depth
    accept    after it            the target's choices → given tokens, accepted rows behind the context, positions as they were
    grow      after the drafter   its slots' hidden states → their logits, the next trees
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from kernels import Recorded, accepted_path, best_first_tree, emitted, row_mask
from strategies.ddtree.vllm_plugin.attention import Caches, FixedRows
from strategies.ddtree.vllm_plugin.choosing import Chosen

Work = Callable[[], None]


def recorder(device: torch.device, captures: bool = True) -> Callable[[Work], Work] | None:
    """What makes a replay of work on ``device``; ``None``: nothing can be recorded there, or, where vLLM ``captures`` nothing, is to be."""
    return partial(Recorded, pool=torch.cuda.graph_pool_handle()) if device.type == "cuda" and captures else None


class ReplayedStep:
    """Of one number of requests, the same object at every such step. Its tensors, all int64, never move.

    ``trees`` ``[3, requests, rows]`` (tokens, parents, depths) are those to verify until ``grow`` makes them the next ones, whose
    tokens behind the root ``drafts`` ``[requests, nodes]`` repeats; ``depths`` ``[requests, rows]`` are theirs. ``sampled``
    ``[requests, longest]`` (int32) is what the step gives, as ``kernels.emitted`` tells it; ``order`` ``[tokens]`` names the rows
    of the flat batch with each request's accepted ones first. ``bonus``, ``given`` and ``rejected`` ``[requests]`` (int32) are each
    request's last token, how many it got, and rows that were not accepted. ``names`` are the requests whose trees these are, ``grown``: that
    these are next to be verified.
    """

    has_trees = only_trees = even = True

    def __init__(
        self, requests: int, fixed: FixedRows, positions: Tensor, slots: int, slot_logits: Callable[[Tensor], Tensor],
        caches: Caches, record: Callable[[Work], Work],
    ) -> None:  # fmt: skip
        """To be made when ``positions`` (vLLM's) are those of a step of as many trees, one row after another.

        ``slot_logits``: hidden states ``[requests * slots, hidden]`` -> ``[requests, slots, vocab]``.
        """
        self.widest, self._longest, device = fixed.widest, slots + 1, positions.device
        self._lengths, self._mask = fixed.lengths[:requests], fixed.mask[:requests]
        self._slot_logits, self._caches, self._record = slot_logits, caches, record
        self._every = torch.arange(requests * self.widest, device=device)
        self._at = self._every.view(requests, self.widest)
        self._starts, self._firsts = self._at[:, 0].contiguous(), self._at[:, : self._longest].reshape(-1)
        self._positions = positions[: requests * self.widest].view(requests, self.widest)
        self._linear = self._positions.clone()
        # Chains: placed by their depths rows stay where they are, so that recording moves none.
        chain = torch.arange(self.widest, device=device)
        self.trees = torch.stack([torch.zeros_like(chain), chain - 1, chain])[:, None].repeat(1, requests, 1)
        self._tokens, self._parents, self.depths = self.trees
        self.drafts = self._tokens[:, 1:].clone()
        self._chosen, self._roots = self._every.clone(), self._starts.clone()
        self.bonus, self.given, self.rejected = (torch.zeros(requests, dtype=torch.int32, device=device) for _ in range(3))
        self.sampled = torch.zeros(requests, self._longest, dtype=torch.int32, device=device)
        self.order = self._every.clone()
        self._unread = torch.zeros(requests * slots, dtype=torch.int64, device=device)
        self.names: list[str] = []
        self.grown = False
        self._accept: Work | None = None
        self._grow: Work | None = None
        self._place = record(self._place_rows)

    def load(self, names: Sequence[str], trees: Sequence[Tensor]) -> None:
        """Verify these requests' ``trees`` next, ``[3, rows]`` each, which come from elsewhere."""
        torch.stack(list(trees), dim=1, out=self.trees)
        self.names = list(names)

    def place(self) -> None:
        """Once vLLM has given out positions."""
        self._place()

    def _place_rows(self) -> None:
        self._mask.copy_(row_mask(self._parents))
        self._linear.copy_(self._positions)
        self._lengths.copy_(self._linear[:, 0])
        torch.add(self._linear[:, :1], self.depths, out=self._positions)

    def accept(self, logits: Tensor, slots: Tensor) -> None:
        """``logits`` ``[tokens, vocab]``, without NaN; ``slots`` ``[tokens]``: the cache's, where vLLM keeps them for every step."""
        if self._accept is None or slots.data_ptr() != self._slots.data_ptr():
            self._slots = slots
            self._chosen.fill_(-1)  # no token: recording accepts nothing and moves nothing
            self._accept = self._record(self._accept_rows)
        torch.argmax(logits, dim=-1, out=self._chosen)
        self._accept()

    def _accept_rows(self) -> None:
        choices = Chosen(self._chosen.view_as(self._tokens))
        path, kept, bonus = accepted_path(self._tokens, self._parents, self.depths, choices, self._longest)
        self.sampled.copy_(emitted(self._tokens, path, kept, bonus, self._longest))
        for place, told in ((self._roots, bonus), (self.bonus, bonus), (self.given, kept), (self.rejected, self.widest - kept)):
            place.copy_(told)
        self._caches.keep(self._slots, self._starts, path)
        self._positions.copy_(self._linear)
        self.order.copy_(self._every).scatter_(0, self._firsts, self._at.gather(1, path).view(-1))

    def grow(self, hidden: Tensor) -> Tensor:
        """From the slots' ``hidden`` states ``[requests * slots, hidden]``. Returns as many tokens, for vLLM to hand on and nobody to read."""
        if self._grow is None:
            self._hidden = hidden.clone()
            self._grow = self._record(self._grow_trees)
        self._hidden.copy_(hidden)
        self._grow()
        self.grown = True
        return self._unread

    def _grow_trees(self) -> None:
        columns = best_first_tree(self._roots, self._slot_logits(self._hidden), self.widest - 1)
        for place, column in zip((self._tokens, self._parents, self.depths), columns):
            place.copy_(column)
        self.drafts.copy_(self._tokens[:, 1:])
