"""After acceptance: bring the rows of the accepted path to the contiguous positions behind the context."""

from __future__ import annotations

import torch
from torch import Tensor


def keep_rows(cache: Tensor, start: int, path: Tensor) -> None:
    """Move rows ``start + path`` of ``cache`` to ``start, start + 1, …`` in place; what lies behind is free again.

    ``cache`` ``[batch, kv_heads, capacity, head_dim]``; ``path`` ``[batch, kept]``, ascending rows of the round.
    """
    batch, kv_heads, _, head_dim = cache.shape
    kept = path.shape[1]
    index = (start + path)[:, None, :, None].expand(batch, kv_heads, kept, head_dim)
    cache[:, :, start : start + kept] = cache.gather(2, index)


def keep_rows_of_all(caches: Tensor, lengths: Tensor, path: Tensor) -> None:
    """Move rows ``lengths[b] + path[b, i]`` of every layer's keys and values to ``lengths[b] + i``, in place.

    ``caches`` ``[layers, 2, batch, kv_heads, capacity, head_dim]``; ``lengths`` int64 ``[batch]``, each request's own;
    ``path`` int64 ``[batch, longest]``, ascending, so that ``path[b, i] >= i``; equal where a row stays.
    """
    layers, two, _, kv_heads, _, head_dim = caches.shape

    def index(rows: Tensor) -> Tensor:
        rows = lengths[:, None] + rows
        return rows[None, None, :, None, :, None].expand(layers, two, -1, kv_heads, -1, head_dim)

    rows = caches.gather(4, index(path))
    caches.scatter_(4, index(torch.arange(path.shape[1], device=path.device)), rows)
