"""Attention of one new row a request over a contiguous span of its cache, lengths read on the device.

The span's ends are tensors, so that one captured graph serves a whole decode.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64


@dataclass(frozen=True)
class Span:
    """Row i of the batch sees the positions ``first[i] <= p < end[i]``; both int ``[batch]``."""

    first: Tensor
    end: Tensor


def span_attention(queries: Tensor, keys: Tensor, values: Tensor, span: Span) -> Tensor:
    """``queries`` ``[batch, heads, 1, head_dim]``, caches ``[batch, kv_heads, capacity, head_dim]`` -> ``[batch, 1, heads * head_dim]``."""
    if queries.is_cuda:
        return _triton(queries, keys, values, span)
    return span_attention_reference(queries, keys, values, span)


def span_attention_reference(queries: Tensor, keys: Tensor, values: Tensor, span: Span) -> Tensor:
    # What lies behind every span was never written: it may be NaN, which no mask of zeros would keep out.
    longest = int(span.end.max())
    keys, values = keys[:, :, :longest], values[:, :, :longest]
    columns = torch.arange(longest, device=keys.device)
    visible = (columns >= span.first[:, None]) & (columns < span.end[:, None])
    batch, heads, _, head_dim = queries.shape
    folded = queries.reshape(batch, keys.shape[1], -1, head_dim)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=visible[:, None, None])
    return out.reshape(batch, 1, heads * head_dim)


def _triton(queries: Tensor, keys: Tensor, values: Tensor, span: Span) -> Tensor:
    from kernels.span_attention_triton import span_attention_kernel

    batch, heads, _, head_dim = queries.shape
    kv_heads = keys.shape[1]
    out = torch.empty(batch, 1, heads * head_dim, dtype=queries.dtype, device=queries.device)
    queries = queries.contiguous()
    span_attention_kernel[(batch, kv_heads)](
        queries, keys, values, span.first, span.end, out, keys.stride(0), keys.stride(1), head_dim**-0.5,
        GROUP=heads // kv_heads, ROWS=max(16, heads // kv_heads), HEAD=head_dim, BLOCK=BLOCK,
    )  # fmt: skip
    return out
