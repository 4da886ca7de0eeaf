"""After acceptance: bring the rows of the accepted path to the contiguous positions behind the context."""

from __future__ import annotations

from torch import Tensor


def keep_rows(cache: Tensor, start: int, path: Tensor) -> None:
    """Move rows ``start + path`` of ``cache`` to ``start, start + 1, …`` in place; what lies behind is free again.

    ``cache`` ``[batch, kv_heads, capacity, head_dim]``; ``path`` ``[batch, kept]``, ascending rows of the round.
    """
    batch, kv_heads, _, head_dim = cache.shape
    kept = path.shape[1]
    index = (start + path)[:, None, :, None].expand(batch, kv_heads, kept, head_dim)
    cache[:, :, start : start + kept] = cache.gather(2, index)
