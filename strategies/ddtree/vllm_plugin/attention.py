"""Attention of a verification step: vLLM's own for everything but trees, whose rows see context, ancestors and themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from kernels import PagedRows
from strategies.ddtree.vllm_plugin.plan import Step


class StepAttention:
    """What the attention metadata of the target's layers carries during a verification step, as ``metadata.ddtree``.

    ``slots`` ``[tokens]`` and ``table`` ``[requests, pages]`` are the layers' own.
    """

    def __init__(self, step: Step, slots: Tensor, table: Tensor) -> None:
        self.step, self.slots = step, slots
        self.rows = PagedRows(step.starts, step.counts, step.bases, table, step.mask, step.widest)


class Caches(Protocol):
    """The caches of all target layers."""

    def keep(self, slots: Tensor, starts: Tensor, path: Tensor) -> None:
        """Bring the accepted rows' keys and values to the places behind the context: ``kernels.PagedCaches.keep``."""


class TreeAttention:
    """Comes before a backend's own implementation class. The backend says how trees are attended to, and what their caches are."""

    BACKEND: str

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        told = getattr(attn_metadata, "ddtree", None)
        if told is None or not told.step.only_trees:
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
