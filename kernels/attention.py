"""Attention of new rows over a cache: prefill, one row, a chain or a tree."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.device import on_gpu
from kernels.layers import rotate_into, weights_and_eps
from kernels.rows import Rows


def attention(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | Rows | None, causal: bool = False) -> Tensor:
    """Grouped-query attention.

    ``queries`` ``[batch, heads, rows, head_dim]``; ``keys`` and ``values`` ``[batch, kv_heads, length, head_dim]``;
    ``visible`` bool ``[batch, rows, length]``, or None: every row sees all, or, with ``causal``, row i the first i + 1.
    With ``Rows`` keys and values are whole caches ``[batch, kv_heads, capacity, head_dim]`` that hold the new rows already.
    Returns ``[batch, rows, heads * head_dim]``.
    """
    if isinstance(visible, Rows):
        return _over_cache(queries, keys, values, visible)
    batch, heads, rows, head_dim = queries.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    if causal:
        out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=group > 1)
        return out.transpose(1, 2).reshape(batch, rows, heads * head_dim)
    # The heads of a group read the same keys: as more rows of one head they need no copy of the cache.
    folded = queries.reshape(batch, kv_heads, group * rows, head_dim)
    if visible is not None:
        visible = visible[:, None].expand(batch, group, rows, -1).reshape(batch, 1, group * rows, -1)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=visible)
    return out.reshape(batch, heads, rows, head_dim).transpose(1, 2).reshape(batch, rows, heads * head_dim)


def _over_cache(queries: Tensor, keys: Tensor, values: Tensor, rows: Rows) -> Tensor:
    if on_gpu(queries):
        from kernels.triton_kernels.tree_attention import tree_attention

        return tree_attention(queries, keys, values, rows.lengths, rows.mask, rows.window)
    batch, heads, new, head_dim = queries.shape
    longest = rows.longest + new
    bias = rows.bias(new, queries.dtype)
    grouped = heads > keys.shape[1]
    out = F.scaled_dot_product_attention(queries, keys[:, :, :longest], values[:, :, :longest], bias, enable_gqa=grouped)
    return out.transpose(1, 2).reshape(batch, new, heads * head_dim)


def rotated_attention(
    qkv: Tensor, rope: tuple[Tensor, Tensor], heads: int, q_norm, k_norm, keys: Tensor, values: Tensor, rows: Rows
) -> Tensor:
    """``rotate_into``, then ``attention`` of its queries over the caches: arguments as theirs, returns what the latter does."""
    if on_gpu(qkv):
        from kernels.triton_kernels import rotated as kernel

        if kernel.rotates(qkv.shape[1], heads, keys):
            norms = weights_and_eps(q_norm, k_norm)
            return kernel.rotated_attention(qkv, *rope, heads, *norms, keys, values, rows.lengths, rows.mask, rows.window)
    queries = rotate_into(qkv, rope, heads, q_norm, k_norm, keys, values, rows.lengths)
    return attention(queries, keys, values, rows)


def visible_rows(tree_mask: Tensor, context: int) -> Tensor:
    """The whole mask of a round: every row sees the ``context`` committed positions, then its own ``tree_mask``.

    ``tree_mask`` bool ``[batch, rows, rows]`` -> ``[batch, rows, context + rows]``.
    """
    batch, rows, _ = tree_mask.shape
    return torch.cat([tree_mask.new_ones(batch, rows, context), tree_mask], dim=-1)
