"""Attention of a verification step: vLLM's own for everything but trees, whose rows see context, ancestors and themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strategies.ddtree.vllm_plugin.plan import Step, Verified


class StepAttention:
    """What the attention metadata of the target's layers carries during a verification step, as ``metadata.ddtree``.

    ``slots`` ``[tokens]`` and ``table`` ``[requests, blocks]`` are the layers' own; masks are made once for all layers.
    """

    def __init__(self, step: Step, slots: Tensor, table: Tensor) -> None:
        self.trees, self.only_trees = step.trees, step.only_trees
        self.slots, self.table = slots, table
        self.masks = [tree.mask(slots.device) for tree in self.trees]
        self.made: dict = {}  # what a backend works out once a step

    def context_slots(self, tree: Verified, block: int) -> Tensor:
        """Cache slots of the request's committed positions ``[base]``."""
        positions = torch.arange(tree.base, device=self.slots.device)
        return self.table[tree.index, positions // block].long() * block + positions % block


class TreeAttention:
    """Comes before a backend's own implementation class. The backend says how trees are attended to, in ``attend``."""

    BACKEND: str

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        step = getattr(attn_metadata, "ddtree", None)
        if step is None or not step.only_trees:
            super().forward(layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale)
        if step is not None:
            self.attend(step, query, key, value, kv_cache, output.view(query.shape))
        return output

    def attend(self, step: StepAttention, query: Tensor, key: Tensor, value: Tensor, cache: Tensor, output: Tensor) -> None:
        """Fill ``output`` ``[tokens, heads, head_dim]`` at the rows of the step's trees.

        ``query`` ``[tokens, heads, head_dim]``, ``key`` and ``value`` ``[tokens, kv_heads, head_dim]``; all rows are in
        ``cache`` already, each at its own slot.
        """
        raise NotImplementedError

    def cache_rows(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values ``[n, kv_heads, head_dim]`` at ``slots`` ``[n]`` of a layer's cache."""
        raise NotImplementedError


def commit(layers: Sequence, slots: Tensor, trees: Sequence[Verified]) -> None:
    """Bring the accepted rows' keys and values to the places behind the context, in every one of ``layers``.

    ``slots`` ``[tokens]`` are the rows' own slots; row j of a path moves to the slot of row j. Rows in place stay.
    """
    moves = [(tree.start + row, tree.start + place) for tree in trees for place, row in enumerate(tree.path) if row != place]
    if not moves:
        return
    # vLLM's writers read slots by address: each row must lie in one piece.
    sources, targets = slots[torch.tensor(moves, device=slots.device)].T.contiguous()
    for layer in layers:
        keys, values = layer.impl.cache_rows(layer.kv_cache, sources)
        layer.impl.do_kv_cache_update(layer, keys, values, layer.kv_cache, targets)
