"""Attention cut into parts: which blocks of a context there are, and how what the parts found becomes one."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_kernels.launch import let_next_start, wait_for_last


@triton.jit
def blocks_of(lengths_ptr, request, rows, window, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """Length of a context, the first block of it that is seen, and how many are seen, the blocks of new rows included."""
    length = tl.load(lengths_ptr + request).to(tl.int32)
    first = 0
    if WINDOW:
        first = tl.maximum(length - window + 1, 0) // BLOCK_N
    return length, first, tl.cdiv(length, BLOCK_N) - first + tl.cdiv(rows, BLOCK_N)


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
    partial_ptr, out_ptr, pair, first_m, rows, first_row, count, kv_heads, blocks,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Rows ``first_m`` … of a pair of request and key head from all parts that have blocks, in their order."""
    folded = GROUP * rows
    m, dims = first_m + tl.arange(0, ROWS), tl.arange(0, DIMS)
    real = (m < folded) & (m % rows < count)
    parts_ptr = partial_ptr + pair.to(tl.int64) * PARTS * folded * (DIMS + 1)
    stride = folded * (DIMS + 1)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    for part in tl.static_range(PARTS):
        there = real & (part * blocks // PARTS < (part + 1) * blocks // PARTS)
        lse = tl.load(parts_ptr + part * stride + folded * DIMS + m, mask=there, other=float("-inf"), cache_modifier=".cg")
        largest = tl.maximum(largest, lse)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, DIMS), tl.float32)
    for part in tl.static_range(PARTS):
        there = real & (part * blocks // PARTS < (part + 1) * blocks // PARTS)
        lse = tl.load(parts_ptr + part * stride + folded * DIMS + m, mask=there, other=float("-inf"), cache_modifier=".cg")
        places = parts_ptr + part * stride + m[:, None] * DIMS + dims[None, :]
        share = tl.exp2(lse - largest)
        out += share[:, None] * tl.load(places, mask=there[:, None], other=0.0, cache_modifier=".cg")
        total += share
    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    at = ((first_row + m % rows) * (kv_heads * GROUP) + pair % kv_heads * GROUP + m // rows) * HEAD_DIM
    written = real[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(out_ptr + at[:, None] + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=written)


@triton.jit
def merge_kernel(
    lengths_ptr, partial_ptr, out_ptr, starts_ptr, counts_ptr, rows, kv_heads, window,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program for ``ROWS`` rows of a pair of request and key head."""
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    pair = tl.program_id(1)
    request = (pair // kv_heads).to(tl.int64)
    first_row, count = own_rows(starts_ptr, counts_ptr, request, rows, PAGE)
    _, _, blocks = blocks_of(lengths_ptr, request, count, window, WINDOW, BLOCK_N)
    first_m = tl.program_id(0) * ROWS
    merge(partial_ptr, out_ptr, pair, first_m, rows, first_row, count, kv_heads, blocks, GROUP, HEAD_DIM, DIMS, PARTS, ROWS)
