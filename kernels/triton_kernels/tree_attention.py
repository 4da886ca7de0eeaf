"""Attention of the rows of draft trees over a cache, lengths on the device: programs share the context, then merge."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import (
    COUNTERS, arrives_last, counters, dependent_launch, let_next_start, programs_at_once, wait_for_last,
)  # fmt: skip

_FEW = 16  # rows times heads of a group that the last program of a part merges
_MERGED = 4  # of them, a program of a kernel that merges more
_MOST_PARTS = 32


def tree_attention(
    queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, bits: Tensor | None, window: int | None = None
) -> Tensor:
    """``kernels.attention.attention`` with ``Rows``, in fp32 between loads and store but for the weights of the values.

    ``queries`` ``[batch, heads, rows, head_dim]`` of any strides with whole heads; caches ``[batch, kv_heads, capacity,
    head_dim]`` that share their strides and hold finite numbers; ``lengths`` int64 ``[batch]``; ``bits`` int64 ``[batch, rows,
    words]``: bit j % 64 of word j // 64 says whether a row sees new row j; None: all do. Returns ``[batch, rows, heads *
    head_dim]``; a row that sees nothing gets zeros.

    The heads of a group are more rows of one head. A context is cut into as many parts as fill the device together with
    requests, heads and tiles of rows; a part's blocks follow from ``lengths``, so that the grid is always the same.
    """
    batch, heads, rows, head_dim = queries.shape
    kv_heads = keys.shape[1]
    if keys.stride() != values.stride() or keys.stride(2) != head_dim or keys.stride(3) != 1:
        raise ValueError(f"caches of strides {keys.stride()} and {values.stride()}: the same, with whole rows, are needed")
    if queries.stride(3) != 1:
        queries = queries.contiguous()
    group = heads // kv_heads
    folded = group * rows
    dims = max(16, triton.next_power_of_2(head_dim))
    block_m, block_n, warps, stages = _tile(folded, dims, queries.dtype)
    tiles = triton.cdiv(folded, block_m)
    parts = min(_MOST_PARTS, max(1, programs_at_once(queries.device) // (batch * kv_heads * tiles)))
    merged = triton.next_power_of_2(folded) if folded <= _FEW and batch * kv_heads <= COUNTERS else 0
    out = queries.new_empty(batch, rows, heads * head_dim)
    device = queries.device
    partial = torch.empty(batch * kv_heads * parts * folded * (dims + 1), dtype=torch.float32, device=device) if parts > 1 else None
    dependent = dependent_launch(device)
    shape = {
        "GROUP": group, "HEAD_DIM": head_dim, "DIMS": dims, "BLOCK_N": block_n, "PARTS": parts,
        "WINDOW": window is not None, "DEPENDENT": dependent, "launch_pdl": dependent,
    }  # fmt: skip
    _attention_kernel[(parts, tiles, batch * kv_heads)](
        queries, keys, values, lengths, bits, out, partial, counters(device) if merged else None,
        queries.stride(0), queries.stride(1), queries.stride(2), keys.stride(0), keys.stride(1),
        rows, kv_heads, bits.shape[2] if bits is not None else 0, window or 0, math.log2(math.e) / math.sqrt(head_dim),
        BITS=bits is not None, MERGED=merged, BLOCK_M=block_m, num_warps=warps, num_stages=stages, **shape,
    )  # fmt: skip
    if parts > 1 and not merged:
        _merge_kernel[(triton.cdiv(folded, _MERGED), batch * kv_heads)](
            lengths, partial, out, rows, kv_heads, window or 0, ROWS=_MERGED, num_warps=_MERGED, **shape
        )
    return out


def _tile(folded: int, dims: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Rows and columns of a program's blocks, warps, stages. Columns divide the 64 of a word of ``bits``."""
    if dtype == torch.float32:
        return (16, 32, 4, 2) if dims <= 64 else (16, 16, 8, 2)
    block_m = next((most for most in (16, 32, 64) if folded <= most), 128)
    return block_m, 64, 8 if block_m == 128 else 4, 3 if dims <= 128 else 2


@triton.jit
def _blocks(lengths_ptr, request, rows, window, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """Length of a context, the first block of it that is seen, and how many are seen, the blocks of new rows included."""
    length = tl.load(lengths_ptr + request).to(tl.int32)
    first = 0
    if WINDOW:
        first = tl.maximum(length - window + 1, 0) // BLOCK_N
    return length, first, tl.cdiv(length, BLOCK_N) - first + tl.cdiv(rows, BLOCK_N)


@triton.jit
def _attend(q, k, v, seen, out, largest, total, scale, MASKED: tl.constexpr):
    """One more block of keys ``[DIMS, columns]`` and values: its share of the softmax, in powers of two. ``total`` and ``out``
    count from ``largest``."""
    scores = tl.dot(q, k, input_precision="ieee") * scale
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(largest, tl.max(scores, 1))
    base = higher
    if MASKED:
        base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen nothing so far
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(largest - base)
    out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
    return out, higher, total * shrink + tl.sum(weights, 1)


@triton.jit
def _attention_kernel(
    q_ptr, keys_ptr, values_ptr, lengths_ptr, bits_ptr, out_ptr, partial_ptr, counter_ptr,
    stride_q_batch, stride_q_head, stride_q_row, stride_batch, stride_head, rows, kv_heads, words, window, scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr, WINDOW: tl.constexpr, BITS: tl.constexpr, MERGED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program for a part of the context, ``BLOCK_M`` rows of a group's heads, and a key head of a request.

    Blocks in order: those of the context, of which the last may be cut short, then those of the new rows.
    """
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    part, pair = tl.program_id(0), tl.program_id(2)
    request, kv_head = (pair // kv_heads).to(tl.int64), pair % kv_heads
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    head, row = kv_head * GROUP + m // rows, m % rows
    real = m < GROUP * rows
    dims, columns = tl.arange(0, DIMS), tl.arange(0, BLOCK_N)
    q_at = request * stride_q_batch + head.to(tl.int64) * stride_q_head + row * stride_q_row
    # Before the length is known: both come in one wait for the memory.
    q = tl.load(q_ptr + q_at[:, None] + dims[None, :], mask=real[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    length, first, blocks = _blocks(lengths_ptr, request, rows, window, WINDOW, BLOCK_N)
    begin, end = first + part * blocks // PARTS, first + (part + 1) * blocks // PARTS
    if begin == end:
        return
    cache = request * stride_batch + kv_head.to(tl.int64) * stride_head
    k_tile = keys_ptr + cache + columns[None, :] * HEAD_DIM + dims[:, None]
    v_tile = values_ptr + cache + columns[:, None] * HEAD_DIM + dims[None, :]
    out = tl.zeros((BLOCK_M, DIMS), tl.float32)
    largest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)

    masked = begin
    if not WINDOW and DIMS == HEAD_DIM:
        masked = tl.maximum(begin, tl.minimum(end, length // BLOCK_N))
        for block in range(begin, masked):
            k = tl.load(k_tile + block * (BLOCK_N * HEAD_DIM))
            v = tl.load(v_tile + block * (BLOCK_N * HEAD_DIM))
            out, largest, total = _attend(q, k, v, True, out, largest, total, scale, False)
    context = tl.cdiv(length, BLOCK_N)
    STAGES: tl.constexpr = 2 if WINDOW else 1
    for block in tl.range(masked, end, num_stages=STAGES):
        new = tl.maximum(block - context, 0) * BLOCK_N
        of_context = block < context
        begin_column = tl.where(of_context, block * BLOCK_N, length + new)
        loaded = begin_column + columns < tl.where(of_context, length, length + rows)
        k = tl.load(k_tile + begin_column * HEAD_DIM, mask=loaded[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)
        v = tl.load(v_tile + begin_column * HEAD_DIM, mask=loaded[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
        seen = loaded[None, :]
        if BITS:
            of_new = real & (block >= context)
            word = tl.load(bits_ptr + (request * rows + row) * words + new // 64, mask=of_new, other=-1)
            seen = seen & (((word[:, None] >> (new % 64 + columns).to(tl.int64)[None, :]) & 1) != 0)
        if WINDOW:
            away = (length + row)[:, None] - (begin_column + columns)[None, :]
            seen = seen & (tl.maximum(away, -away) < window)
        out, largest, total = _attend(q, k, v, seen, out, largest, total, scale, True)

    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    if PARTS == 1:
        at = ((request * rows + row) * (kv_heads * GROUP) + head) * HEAD_DIM
        tl.store(out_ptr + at[:, None] + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=real[:, None] & (dims < HEAD_DIM)[None, :])
    else:
        folded = GROUP * rows
        own_ptr = partial_ptr + (pair.to(tl.int64) * PARTS + part) * folded * (DIMS + 1)
        tl.store(own_ptr + m[:, None] * DIMS + dims[None, :], out, mask=real[:, None])
        tl.store(own_ptr + folded * DIMS + m, tl.where(total == 0.0, float("-inf"), largest + tl.log2(total)), mask=real)
        if MERGED > 0:
            if arrives_last(counter_ptr + pair, tl.minimum(blocks, PARTS)):
                _merge(partial_ptr, out_ptr, pair, 0, rows, kv_heads, blocks, GROUP, HEAD_DIM, DIMS, PARTS, MERGED)


@triton.jit
def _merge(
    partial_ptr, out_ptr, pair, first_m, rows, kv_heads, blocks,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Rows ``first_m`` … of a pair of request and key head from all parts that have blocks, in their order."""
    folded = GROUP * rows
    m, dims = first_m + tl.arange(0, ROWS), tl.arange(0, DIMS)
    real = m < folded
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
    request, kv_head = (pair // kv_heads).to(tl.int64), pair % kv_heads
    at = ((request * rows + m % rows) * (kv_heads * GROUP) + kv_head * GROUP + m // rows) * HEAD_DIM
    written = real[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(out_ptr + at[:, None] + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=written)


@triton.jit
def _merge_kernel(
    lengths_ptr, partial_ptr, out_ptr, rows, kv_heads, window,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr,
    WINDOW: tl.constexpr, ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program for ``ROWS`` rows of a pair of request and key head."""
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    pair = tl.program_id(1)
    _, _, blocks = _blocks(lengths_ptr, (pair // kv_heads).to(tl.int64), rows, window, WINDOW, BLOCK_N)
    _merge(partial_ptr, out_ptr, pair, tl.program_id(0) * ROWS, rows, kv_heads, blocks, GROUP, HEAD_DIM, DIMS, PARTS, ROWS)
