"""Attention of the rows of draft trees over a cache, lengths on the device: programs share the context, then merge.

One kernel for two kinds of cache: one stretch of memory a request (``tree_attention``), or pages that a table names, with
the rows in a flat batch (``kernels.triton_kernels.paged.paged_attention``). Of the first kind it may take queries, keys and
values as their product left them (``kernels.triton_kernels.rotated``): each program norms and rotates what it needs of them.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.blocks import attend, block_sizes, in_pages, new_rows, norms_of, padded, row_bits, seen_of_new, turned
from kernels.triton_kernels.launch import (
    arrives_last, counters, dependent_launch, leave, let_next_start, meet, programs_at_once, side_by_side, wait_for_last,
)  # fmt: skip
from kernels.triton_kernels.parts import blocks_of, merge, own_rows

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
    check_caches(keys, values)
    if queries.stride(3) != 1:
        queries = queries.contiguous()
    out = queries.new_empty(batch, rows, heads * head_dim)
    launch(
        queries, keys, values, out, (batch, rows, heads, keys.shape[1]), queries.stride()[:3], keys.stride()[:2],
        lengths, bits, window, 1 / math.sqrt(head_dim),
    )  # fmt: skip
    return out


def check_caches(keys: Tensor, values: Tensor) -> None:
    """Refuse caches that are not of the same strides and whole rows."""
    if keys.stride() != values.stride() or keys.stride(2) != keys.shape[3] or keys.stride(3) != 1:
        raise ValueError(f"caches of strides {keys.stride()} and {values.stride()}: the same, with whole rows, are needed")


def launch(
    queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, sizes: tuple, query_strides: tuple, cache_strides: tuple,
    lengths: Tensor, bits: Tensor | None, window: int | None, scale: float, pages: tuple = (None, None, None, 0, 0, 0), page: int = 0,
    rotation: tuple = (),
) -> None:  # fmt: skip
    """``sizes``: batch, rows, heads, key heads. ``query_strides``: of request, head, row; ``cache_strides``: of request, head.

    With ``page`` positions a page, ``pages`` are starts and counts of the requests' rows, the table, and strides of table,
    page and position. With ``rotation``, which is cosine, sine, norms of queries and keys, capacity and eps, ``queries`` are the
    product of queries, keys and values.
    """
    batch, rows, heads, kv_heads = sizes
    bits = None if bits is None else bits.contiguous()
    group, head_dim, device = heads // kv_heads, keys.shape[-1], queries.device
    folded, dims = group * rows, padded(head_dim)
    block_m, block_n, warps, stages, beside = block_sizes(folded, dims, queries.dtype, page)
    tiles = triton.cdiv(folded, block_m)
    parts = min(_MOST_PARTS, max(1, beside * programs_at_once(device) // (batch * kv_heads * tiles)))
    partial = torch.empty(batch * kv_heads * parts * folded * (dims + 1), dtype=torch.float32, device=device) if parts > 1 else None
    dependent = dependent_launch(device)
    starts, counts, table, stride_table, stride_page, stride_position = pages
    cos, sin, q_norm, k_norm, capacity, eps = rotation or (None, None, None, None, 0, 0.0)
    # Few new rows are one block of their own width; in fp32 the blocks, too, are the same however many rows there are.
    few = bool(rotation) and rows <= 32 and queries.dtype != torch.float32
    new_n = max(16, triton.next_power_of_2(rows)) if few else block_n
    shape = {
        "GROUP": group, "HEAD_DIM": head_dim, "DIMS": dims, "BLOCK_N": block_n, "PARTS": parts, "PAGE": page,
        "WINDOW": window is not None, "DEPENDENT": dependent, "launch_pdl": dependent,
        "ROTATE": bool(rotation), "NORM": q_norm is not None, "NEW_N": new_n, "ONE_NEW": few,
    }  # fmt: skip
    _attention_kernel[(parts, tiles, batch * kv_heads)](
        queries, keys, values, lengths, bits, out, partial, counters(device) if parts > 1 else None, starts, counts, table,
        cos, sin, q_norm, k_norm, *query_strides, *cache_strides, stride_table, stride_page, stride_position,
        rows, kv_heads, bits.shape[2] if bits is not None else 0, window or 0, math.log2(math.e) * scale, capacity, eps,
        BITS=bits is not None, TOGETHER=side_by_side(device), BLOCK_M=block_m, num_warps=warps, num_stages=stages, **shape,
    )  # fmt: skip


@triton.jit
def _attention_kernel(
    q_ptr, keys_ptr, values_ptr, lengths_ptr, bits_ptr, out_ptr, partial_ptr, counter_ptr, starts_ptr, counts_ptr, table_ptr,
    cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr,
    stride_q_batch, stride_q_head, stride_q_row, stride_batch, stride_head, stride_table, stride_page, stride_position,
    rows, kv_heads, words, window, scale, capacity, eps,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, BITS: tl.constexpr, TOGETHER: tl.constexpr,
    DEPENDENT: tl.constexpr, ROTATE: tl.constexpr, NORM: tl.constexpr, NEW_N: tl.constexpr, ONE_NEW: tl.constexpr,
):  # fmt: skip
    """A program for a part of the context, ``BLOCK_M`` rows of a group's heads, and a key head of a request.

    Blocks in order: those of the context, of which the last may be cut short, then those of the new rows. With ``ROTATE`` a part
    begins with the latter, so that keys and queries are fetched and turned side by side; the first tile writes the rows. Once all parts of a
    tile have come, each merges a share of its rows; without ``TOGETHER`` (the interpreter runs one program after another) the
    last to come merges all.
    """
    let_next_start(DEPENDENT)
    part, pair = tl.program_id(0), tl.program_id(2)
    request, kv_head = (pair // kv_heads).to(tl.int64), pair % kv_heads
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    head, row = kv_head * GROUP + m // rows, m % rows
    real = m < GROUP * rows
    count = rows
    if PAGE > 0:
        wait_for_last(DEPENDENT)
        first_row, count = own_rows(starts_ptr, counts_ptr, request, rows, PAGE)
        if count == 0:
            return
        real = real & (row < count)
        q_ptr += first_row * stride_q_row
        table_ptr += request * stride_table
    dims, columns = tl.arange(0, DIMS), tl.arange(0, BLOCK_N)
    length, first, blocks = blocks_of(lengths_ptr, request, count, window, WINDOW, BLOCK_N, NEW_N)
    begin, end = first + part * blocks // PARTS, first + (part + 1) * blocks // PARTS
    if PARTS == 1:
        if begin == end:  # never: the compiler makes less of the loops without it
            return
    cache = request * stride_batch + kv_head.to(tl.int64) * stride_head
    if PAGE > 0:
        k_tile = keys_ptr + cache + dims[:, None]
        v_tile = values_ptr + cache + dims[None, :]
    else:
        k_tile = keys_ptr + cache + columns[None, :] * HEAD_DIM + dims[:, None]
        v_tile = values_ptr + cache + columns[:, None] * HEAD_DIM + dims[None, :]
    WHOLE: tl.constexpr = not WINDOW and DIMS == HEAD_DIM  # blocks within the context need no mask
    # Of few rows the first block, committed in earlier rounds, is asked for before the wait; of many, and through a loop over new
    # rows, it would take their registers.
    EARLY: tl.constexpr = WHOLE and PAGE == 0 and BLOCK_M <= 32 and (ONE_NEW or not ROTATE)
    if EARLY:
        early = begin < tl.minimum(end, length // BLOCK_N)
        early_k = tl.load(k_tile + begin * (BLOCK_N * HEAD_DIM), mask=early, other=0.0)
        early_v = tl.load(v_tile + begin * (BLOCK_N * HEAD_DIM), mask=early, other=0.0)
    if ROTATE:
        others = (dims + HEAD_DIM // 2) % HEAD_DIM
        q_norms, q_other_norms = norms_of(q_norm_ptr, dims, others, HEAD_DIM, NORM)
        k_norms, k_other_norms = norms_of(k_norm_ptr, dims, others, HEAD_DIM, NORM)
    if PAGE == 0:
        wait_for_last(DEPENDENT)
    q_at = request * stride_q_batch + head.to(tl.int64) * stride_q_head + row * stride_q_row
    q_there = real[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + q_at[:, None] + dims[None, :], mask=q_there, other=0.0)
    context = tl.cdiv(length, BLOCK_N)
    if ROTATE:
        q_other = tl.load(q_ptr + q_at[:, None] + others[None, :], mask=q_there, other=0.0)
        angles = ((request * rows + row) * HEAD_DIM)[:, None] + dims[None, :]
        cos, sin = tl.load(cos_ptr + angles, mask=q_there, other=0.0), tl.load(sin_ptr + angles, mask=q_there, other=0.0)
        capacity = tl.where(tl.program_id(1) == 0, capacity, 0)
        new_block = tl.maximum(begin, context)
        if ONE_NEW:  # asked for before the queries are turned
            word = row_bits(bits_ptr, request, row, real & (new_block < end), rows, words, 0, BITS)
            new_k, new_v = tl.zeros((DIMS, NEW_N), q.dtype), tl.zeros((NEW_N, DIMS), q.dtype)
            if new_block < end:
                new_k, new_v = new_rows(
                    q_ptr, cos_ptr, sin_ptr, k_norms, k_other_norms, keys_ptr + cache, values_ptr + cache, request, kv_head, kv_heads, 0,
                    rows, length, capacity, eps, GROUP, HEAD_DIM, DIMS, NEW_N, NORM,
                )  # fmt: skip
        first_half = (dims < HEAD_DIM // 2)[None, :]
        q = turned(q, q_other, cos, sin, q_norms[None, :], q_other_norms[None, :], first_half, eps, 1, HEAD_DIM, NORM)
    out = tl.zeros((BLOCK_M, DIMS), tl.float32)
    largest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)

    if ROTATE:
        if ONE_NEW:
            if new_block < end:
                seen = seen_of_new(word, row, 0, rows, window, NEW_N, BITS, WINDOW)
                out, largest, total = attend(q, new_k, new_v, seen, out, largest, total, scale, True)
        else:
            for block in tl.range(new_block, end, num_stages=1):
                new = (block - context) * NEW_N
                k, v = new_rows(
                    q_ptr, cos_ptr, sin_ptr, k_norms, k_other_norms, keys_ptr + cache, values_ptr + cache, request, kv_head, kv_heads,
                    new, rows, length, capacity, eps, GROUP, HEAD_DIM, DIMS, NEW_N, NORM,
                )  # fmt: skip
                word = row_bits(bits_ptr, request, row, real, rows, words, new, BITS)
                seen = seen_of_new(word, row, new, rows, window, NEW_N, BITS, WINDOW)
                out, largest, total = attend(q, k, v, seen, out, largest, total, scale, True)
        end = tl.minimum(end, context)
    if EARLY:
        if early:
            out, largest, total = attend(q, early_k, early_v, True, out, largest, total, scale, False)
            begin += 1
    masked = begin
    if WHOLE:
        masked = tl.maximum(begin, tl.minimum(end, length // BLOCK_N))
        for block in range(begin, masked):
            if PAGE > 0:
                places = in_pages(table_ptr, block * BLOCK_N + columns, None, stride_page, stride_position, PAGE)
                k, v = tl.load(k_tile + places[None, :]), tl.load(v_tile + places[:, None])
            else:
                k = tl.load(k_tile + block * (BLOCK_N * HEAD_DIM))
                v = tl.load(v_tile + block * (BLOCK_N * HEAD_DIM))
            out, largest, total = attend(q, k, v, True, out, largest, total, scale, False)
    STAGES: tl.constexpr = 2 if WINDOW else 1
    for block in tl.range(masked, end, num_stages=STAGES):
        new = tl.maximum(block - context, 0) * BLOCK_N
        of_context = block < context
        begin_column = tl.where(of_context, block * BLOCK_N, length + new)
        loaded = begin_column + columns < tl.where(of_context, length, length + count)
        if PAGE > 0:
            places = in_pages(table_ptr, begin_column + columns, loaded, stride_page, stride_position, PAGE)
            k_at, v_at = k_tile + places[None, :], v_tile + places[:, None]
        else:
            k_at, v_at = k_tile + begin_column * HEAD_DIM, v_tile + begin_column * HEAD_DIM
        k = tl.load(k_at, mask=loaded[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)
        v = tl.load(v_at, mask=loaded[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
        seen = loaded[None, :]
        if BITS and not ROTATE:
            of_new = real & (block >= context)
            word = tl.load(bits_ptr + (request * rows + row) * words + new // 64, mask=of_new, other=-1)
            seen = seen & (((word[:, None] >> (new % 64 + columns).to(tl.int64)[None, :]) & 1) != 0)
        if WINDOW:
            away = (length + row)[:, None] - (begin_column + columns)[None, :]
            seen = seen & (tl.maximum(away, -away) < window)
        out, largest, total = attend(q, k, v, seen, out, largest, total, scale, True)

    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    first_row, count = own_rows(starts_ptr, counts_ptr, request, rows, PAGE)
    if PARTS == 1:
        at = ((first_row + row) * (kv_heads * GROUP) + head) * HEAD_DIM
        tl.store(out_ptr + at[:, None] + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=real[:, None] & (dims < HEAD_DIM)[None, :])
    else:
        folded = GROUP * rows
        own_ptr = partial_ptr + (pair.to(tl.int64) * PARTS + part) * folded * (DIMS + 1)
        tl.store(own_ptr + m[:, None] * DIMS + dims[None, :], out, mask=real[:, None])
        tl.store(own_ptr + folded * DIMS + m, tl.where(total == 0.0, float("-inf"), largest + tl.log2(total)), mask=real)
        tile = tl.program_id(1)
        counters_ptr = counter_ptr + 2 * (pair * tl.num_programs(1) + tile)
        if TOGETHER:
            meet(counters_ptr, PARTS)
            merge(partial_ptr, out_ptr, pair, tile, part, rows, first_row, count, kv_heads, GROUP, HEAD_DIM, DIMS, BLOCK_M, PARTS)
            leave(counters_ptr, PARTS)
        elif arrives_last(counters_ptr, PARTS):
            for share in range(PARTS):
                merge(partial_ptr, out_ptr, pair, tile, share, rows, first_row, count, kv_heads, GROUP, HEAD_DIM, DIMS, BLOCK_M, PARTS)
