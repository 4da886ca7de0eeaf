"""Attention of a verification step: vLLM's own for everything but trees, whose rows see context, ancestors and themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels import PagedRows, row_mask
from kernels.device import on_gpu
from strategies.ddtree.vllm_plugin.plan import Step


@dataclass(frozen=True)
class StepAttention:
    """What the attention metadata of the target's layers carries during a verification step, as ``metadata.ddtree``.

    ``slots`` ``[tokens]`` are the layers' own; ``rows`` those of the step's trees, or the places from which a captured pass reads
    them; ``only_trees``: there are no others.
    """

    slots: Tensor
    rows: PagedRows
    only_trees: bool

    @classmethod
    def of(cls, step: Step, slots: Tensor, table: Tensor) -> StepAttention:
        """``table`` ``[requests, pages]`` of the layers."""
        return cls(slots, PagedRows(step.starts, step.counts, step.bases, table, step.mask, step.widest), step.only_trees)


class FixedRows:
    """What a captured pass reads of its step: the same places at every step, for up to ``requests`` trees of ``widest`` rows.

    ``lengths`` ``[requests]`` and ``mask`` as ``PagedRows`` has them, for a step to fill.
    """

    def __init__(self, requests: int, widest: int, device: torch.device) -> None:
        self.widest, self._filled = widest, 0
        self._starts = widest * torch.arange(requests, device=device)
        self._counts, self.lengths = (torch.zeros(requests, dtype=torch.int64, device=device) for _ in range(2))
        self.mask = row_mask(torch.full((requests, widest), -1, device=device))
        self._firsts: dict[int, tuple[Tensor, ...]] = {}  # by number of requests
        if on_gpu(self.mask):
            from kernels.triton_kernels.launch import counters

            counters(device)  # cannot be made during a capture

    def takes(self, step: Step) -> bool:
        """Whether every request of the step has a tree of ``widest`` rows, so that a captured pass may verify it."""
        return step.only_trees and step.even and step.widest == self.widest

    def fill(self, step: Step | None) -> None:
        """``None``: no request has rows, as in a pass that is captured."""
        batch = 0 if step is None else len(step.requests)
        if batch:
            self.lengths[:batch].copy_(step.bases)
            self.mask[:batch].copy_(step.mask)
        self.count(batch)

    def count(self, batch: int) -> None:
        """The first ``batch`` requests have rows; those that only fill a captured size have none."""
        if batch != self._filled:
            self._counts[:batch].fill_(self.widest)
            self._counts[batch:].zero_()
            self._filled = batch

    def rows(self, table: Tensor) -> PagedRows:
        """Of as many requests as ``table`` ``[requests, pages]`` has."""
        batch = len(table)
        if batch not in self._firsts:
            self._firsts[batch] = tuple(own[:batch] for own in (self._starts, self._counts, self.lengths, self.mask))
        starts, counts, lengths, mask = self._firsts[batch]
        return PagedRows(starts, counts, lengths, table, mask, self.widest)


class Caches(Protocol):
    """The caches of all target layers."""

    def keep(self, slots: Tensor, starts: Tensor, path: Tensor) -> None:
        """Bring the accepted rows' keys and values to the places behind the context: ``kernels.PagedCaches.keep``."""


class TreeAttention:
    """Comes before a backend's own implementation class. The backend says how trees are attended to, and what their caches are."""

    BACKEND: str
    trees_alone = False
    """Whether the step has no rows but trees': the runner says so before vLLM makes metadata for its own attention, which then has none."""

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        told = getattr(attn_metadata, "ddtree", None)
        if told is None or not told.only_trees:
            super().forward(layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale)
        if told is not None:
            self.attend(told, query, key, value, kv_cache, output.view(query.shape))
        return output

    def attend(self, told: StepAttention, query: Tensor, key: Tensor, value: Tensor, cache: Tensor, output: Tensor) -> None:
        """Fill ``output`` ``[tokens, heads, head_dim]`` at the rows of the step's trees.

        ``query`` ``[tokens, heads, head_dim]``, ``key`` and ``value`` ``[tokens, kv_heads, head_dim]``; all rows are in
        ``cache`` already, each at its own slot.
        """
        raise NotImplementedError

    @staticmethod
    def caches(layers: Sequence) -> Caches:
        raise NotImplementedError
