"""Attention over a cache of what the product of queries, keys and values left: rotated where it is read, one launch a layer."""

from __future__ import annotations

import math

from torch import Tensor

from kernels.triton_kernels.blocks import block_sizes, padded
from kernels.triton_kernels.tree_attention import check_caches, launch

# Rows of a program up to which it rotates what it reads; of more, a kernel before it does, lest many programs turn the same keys.
# 0: no pass rotates within attention; 128: every pass.
MOST_ROTATED = 64


def rotates(rows: int, heads: int, keys: Tensor) -> bool:
    """Whether ``rows`` rows over a cache ``[batch, kv_heads, capacity, head_dim]`` go to ``rotated_attention``; in fp32 that does not
    depend on how many they are."""
    _, kv_heads, _, head_dim = keys.shape
    dims = padded(head_dim)  # of wider heads turned rows would not fit into registers beside the others
    return dims <= 128 and block_sizes(heads // kv_heads * rows, dims, keys.dtype, 0)[0] <= MOST_ROTATED


def rotated_attention(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, q_norm: Tensor | None, k_norm: Tensor | None, eps: float,
    keys: Tensor, values: Tensor, lengths: Tensor, bits: Tensor | None, window: int | None = None,
) -> Tensor:  # fmt: skip
    """``rotate_into``, then ``tree_attention``, in one kernel; arguments as theirs. Rows behind the capacity are seen, not written.

    Keys and values of the new rows come from ``qkv``, never from the cache: no program reads what another one writes.
    """
    batch, rows, width = qkv.shape
    _, kv_heads, capacity, head_dim = keys.shape
    check_caches(keys, values)
    out = qkv.new_empty(batch, rows, heads * head_dim)
    launch(
        qkv.contiguous(), keys, values, out, (batch, rows, heads, kv_heads), (rows * width, head_dim, width), keys.stride()[:2],
        lengths, bits, window, 1 / math.sqrt(head_dim), rotation=(cos.contiguous(), sin.contiguous(), q_norm, k_norm, capacity, eps),
    )  # fmt: skip
    return out
