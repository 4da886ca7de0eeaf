"""Attention cut into parts: which blocks of a context there are, and how what the parts found becomes one."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def blocks_of(lengths_ptr, request, rows, window, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr, NEW_N: tl.constexpr):
    """Length of a context, the first block of it that is seen, and how many are seen, the blocks of new rows included."""
    length = tl.load(lengths_ptr + request).to(tl.int32)
    first = 0
    if WINDOW:
        first = tl.maximum(length - window + 1, 0) // BLOCK_N
    return length, first, tl.cdiv(length, BLOCK_N) - first + tl.cdiv(rows, NEW_N)


@triton.jit
def own_rows(starts_ptr, counts_ptr, request, rows, PAGE: tl.constexpr):
    """A request's first row in the batch, and how many it has."""
    if PAGE > 0:
        first, count = tl.load(starts_ptr + request), tl.load(counts_ptr + request).to(tl.int32)
    else:
        first, count = request * rows, rows
    return first, count


@triton.jit
def merge(
    partial_ptr, out_ptr, pair, tile, share, rows, first_row, count, kv_heads,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK_M: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Share ``share`` of ``PARTS`` of a tile's rows, for a pair of request and key head: what all parts found."""
    SHARE: tl.constexpr = triton.next_power_of_2(triton.cdiv(BLOCK_M, PARTS))
    if share * SHARE < BLOCK_M:
        folded = GROUP * rows
        own, dims = share * SHARE + tl.arange(0, SHARE), tl.arange(0, DIMS)
        m = tile * BLOCK_M + own
        real = (own < BLOCK_M) & (m < folded) & (m % rows < count)
        stride = folded * (DIMS + 1)
        parts_ptr = partial_ptr + pair.to(tl.int64) * PARTS * stride
        if BLOCK_M <= 32:  # few enough to have them all at once
            part = tl.arange(0, triton.next_power_of_2(PARTS))
            there = (part < PARTS)[:, None] & real[None, :]
            at = part[:, None] * stride + m[None, :]
            lse = tl.load(parts_ptr + folded * DIMS + at, mask=there, other=float("-inf"), cache_modifier=".cg")
            at = (part[:, None] * stride + m[None, :] * DIMS)[:, :, None] + dims[None, None, :]
            found = tl.load(parts_ptr + at, mask=there[:, :, None], other=0.0, cache_modifier=".cg")
            largest = tl.max(lse, 0)
            weights = tl.exp2(lse - tl.where(largest == float("-inf"), 0.0, largest)[None, :])
            total = tl.sum(weights, 0)
            out = tl.sum(found * weights[:, :, None], 0)
        else:
            largest = tl.full((SHARE,), float("-inf"), tl.float32)
            for part in tl.static_range(PARTS):
                lse = tl.load(parts_ptr + part * stride + folded * DIMS + m, mask=real, other=float("-inf"), cache_modifier=".cg")
                largest = tl.maximum(largest, lse)
            largest = tl.where(largest == float("-inf"), 0.0, largest)
            total = tl.zeros((SHARE,), tl.float32)
            out = tl.zeros((SHARE, DIMS), tl.float32)
            for part in tl.static_range(PARTS):
                lse = tl.load(parts_ptr + part * stride + folded * DIMS + m, mask=real, other=float("-inf"), cache_modifier=".cg")
                places = parts_ptr + part * stride + m[:, None] * DIMS + dims[None, :]
                weight = tl.exp2(lse - largest)
                out += weight[:, None] * tl.load(places, mask=real[:, None], other=0.0, cache_modifier=".cg")
                total += weight
        out = out / tl.where(total == 0.0, 1.0, total)[:, None]
        at = ((first_row + m % rows) * (kv_heads * GROUP) + pair % kv_heads * GROUP + m // rows) * HEAD_DIM
        written = real[:, None] & (dims < HEAD_DIM)[None, :]
        tl.store(out_ptr + at[:, None] + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=written)
