"""Caches in pages, as serving engines keep them: attention of the rows of trees through page tables, and their commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.device import on_gpu


@dataclass(frozen=True)
class PagedRows:
    """The new rows of a step, the same for every layer; on a GPU the host reads none of it.

    Row i of request b is row ``starts[b] + i`` of a flat batch, exists for i < ``counts[b]`` (0: the request has no part in
    this) and lies in the cache at position ``lengths[b] + i``, behind the committed ones; all int64 ``[batch]``. Position p is
    row p % page of page ``table[b, p // page]`` (int32 ``[batch, pages]``). ``mask`` says which of the ``widest`` rows see
    which, as ``row_mask`` gives it.
    """

    starts: Tensor
    counts: Tensor
    lengths: Tensor
    table: Tensor
    mask: Tensor
    widest: int


def paged_attention(queries: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, scale: float, out: Tensor) -> None:
    """Fill ``out`` at the requests' rows: each sees its context and those of the new rows that ``rows.mask`` lets it see.

    ``queries`` and ``out`` ``[tokens, heads, head_dim]``; ``keys`` and ``values`` ``[pages, page, kv_heads, head_dim]`` of any
    strides, and the new rows are in them. Rows of no request stay as they are in ``out``.
    """
    if on_gpu(queries):
        from kernels.triton_kernels.paged import paged_attention as kernel

        kernel(queries, keys, values, rows, scale, out)
        return
    page, grouped = keys.shape[1], queries.shape[1] > keys.shape[2]
    for request, (start, count, length) in enumerate(zip(*map(Tensor.tolist, (rows.starts, rows.counts, rows.lengths)), strict=True)):
        if count == 0:
            continue
        positions = torch.arange(length + count)
        places = rows.table[request, positions // page].long(), positions % page
        own = slice(start, start + count)
        visible = torch.cat([torch.ones(count, length, dtype=torch.bool), rows.mask[request, :count, :count]], dim=1)
        seen = F.scaled_dot_product_attention(
            queries[own].transpose(0, 1), keys[places].transpose(0, 1), values[places].transpose(0, 1), visible,
            scale=scale, enable_gqa=grouped,
        )  # fmt: skip
        out[own] = seen.transpose(0, 1)


class PagedCaches:
    """Keys and values of all layers, each ``[pages, page, kv_heads, head_dim]``, alike in sizes, strides and type."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.parts = [part for layer in layers for part in layer]
        self.first = self.parts[0]
        for part in self.parts:
            if (part.shape, part.stride(), part.dtype) != (self.first.shape, self.first.stride(), self.first.dtype):
                raise ValueError(f"caches {list(self.first.shape)} and {list(part.shape)}: all layers' must be alike, strides included")

    @cached_property
    def addresses(self) -> Tensor:
        """Where each part begins, int64 ``[2 * layers]``, on the device: made once."""
        return torch.tensor([part.data_ptr() for part in self.parts], device=self.first.device)

    def keep(self, slots: Tensor, starts: Tensor, path: Tensor) -> None:
        """Move row ``starts[b] + path[b, i]`` to the slot of row ``starts[b] + i``, in every layer and in place.

        ``slots`` int64 ``[tokens]``: row t of the flat batch lies in page ``slots[t] // page``; ``starts`` int64 ``[batch]``;
        ``path`` int64 ``[batch, longest]``, ascending, ``path[b, i] >= i``.
        """
        if on_gpu(self.first):
            from kernels.triton_kernels.commit import keep_slots

            keep_slots(self.first, self.addresses, slots, starts, path)
            return
        page = self.first.shape[1]
        sources, targets = moves(slots, starts, path)
        for part in self.parts:
            part[targets // page, targets % page] = part[sources // page, sources % page]


def moves(slots: Tensor, starts: Tensor, path: Tensor) -> tuple[Tensor, Tensor]:
    """Slots that rows leave and slots that they go to, of those rows that ``PagedCaches.keep`` moves."""
    to = torch.arange(path.shape[1])
    moved = path > to
    return slots[(starts[:, None] + path)[moved]], slots[(starts[:, None] + to)[moved]]
