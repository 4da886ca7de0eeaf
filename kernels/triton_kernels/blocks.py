"""Blocks of attention: their sizes, what becomes of one, and how those of new rows come out of their product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


_EIGHT_WARPS = {32: 64, 64: 128}  # rows of a block, and up to how wide heads eight warps were measured to be faster than four


def padded(head_dim: int) -> int:
    """The size of a head in a block."""
    return max(16, triton.next_power_of_2(head_dim))


def block_sizes(folded: int, dims: int, dtype: torch.dtype, page: int) -> tuple[int, int, int, int, int]:
    """Rows and columns of a program's blocks, warps, stages, and programs that surely fit on a multiprocessor beside one another.
    Columns divide the 64 of a word of ``bits``."""
    if dtype == torch.float32:
        return (16, 32, 8 if page else 4, 2, 1) if dims <= 64 else (16, 16, 8, 2, 1)  # addresses in pages take registers
    block_m = next((most for most in (16, 32, 64) if folded <= most), 128)
    warps = 8 if block_m == 128 or (dims <= _EIGHT_WARPS.get(block_m, 0) and not page) else 4
    if block_m == 16:
        return block_m, 64, warps, 2, 2 if dims <= 128 else 1
    return block_m, 64, warps, 3 if dims <= 128 else 2, 1


@triton.jit
def in_pages(table_ptr, positions, inside, stride_page, stride_position, PAGE: tl.constexpr):
    """Where the rows at ``positions`` lie, from the begin of a cache."""
    page = tl.load(table_ptr + positions // PAGE, mask=inside).to(tl.int64)
    return page * stride_page + (positions % PAGE) * stride_position


@triton.jit
def attend(q, k, v, seen, out, largest, total, scale, MASKED: tl.constexpr):
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
def norms_of(norm_ptr, dims, others, HEAD_DIM: tl.constexpr, NORM: tl.constexpr):
    """A norm's weights for ``dims`` and for ``others``; ones without a norm."""
    if NORM:
        weights = tl.load(norm_ptr + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
        other_weights = tl.load(norm_ptr + others, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
    else:
        weights = tl.full((dims.shape[0],), 1.0, tl.float32)
        other_weights = weights
    return weights, other_weights


@triton.jit
def turned(x, other, cos, sin, weights, other_weights, first, eps, AXIS: tl.constexpr, HEAD_DIM: tl.constexpr, NORM: tl.constexpr):
    """Heads along ``AXIS``, normed and rotated as ``rotate_into`` does it, of the same type as ``x``; ``other`` holds what each
    number is turned against, ``first`` says which are of the first half."""
    own, against = x.to(tl.float32), other.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(own * own, AXIS, keep_dims=True) / HEAD_DIM + eps)
        own = own * scale * weights
        against = against * scale * other_weights
    return (own * cos.to(tl.float32) + tl.where(first, -against, against) * sin.to(tl.float32)).to(x.dtype)


@triton.jit
def new_rows(
    qkv_ptr, cos_ptr, sin_ptr, weights, other_weights, k_cache_ptr, v_cache_ptr, request, kv_head, kv_heads, begin, rows, length,
    capacity, eps,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, NEW_N: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Keys ``[DIMS, NEW_N]``, normed and rotated, and values of the new rows from ``begin`` on; those that come before ``capacity``
    are written into the cache."""
    dims, row = tl.arange(0, DIMS), begin + tl.arange(0, NEW_N)
    others = (dims + HEAD_DIM // 2) % HEAD_DIM
    number = request * rows + row
    k_ptr = qkv_ptr + (number * (GROUP + 2) * kv_heads + GROUP * kv_heads + kv_head) * HEAD_DIM
    v_ptr = k_ptr + kv_heads * HEAD_DIM
    there = (row < rows)[None, :] & (dims < HEAD_DIM)[:, None]
    v_there = (row < rows)[:, None] & (dims < HEAD_DIM)[None, :]
    k = tl.load(k_ptr[None, :] + dims[:, None], mask=there, other=0.0)
    other = tl.load(k_ptr[None, :] + others[:, None], mask=there, other=0.0)
    angles = (number * HEAD_DIM)[None, :] + dims[:, None]
    cos = tl.load(cos_ptr + angles, mask=there, other=0.0)
    sin = tl.load(sin_ptr + angles, mask=there, other=0.0)
    v = tl.load(v_ptr[:, None] + dims[None, :], mask=v_there, other=0.0)
    first = (dims < HEAD_DIM // 2)[:, None]
    k = turned(k, other, cos, sin, weights[:, None], other_weights[:, None], first, eps, 0, HEAD_DIM, NORM)
    place = length + row
    tl.store(k_cache_ptr + (place * HEAD_DIM)[None, :] + dims[:, None], k, mask=there & (place < capacity)[None, :])
    tl.store(v_cache_ptr + (place * HEAD_DIM)[:, None] + dims[None, :], v, mask=v_there & (place < capacity)[:, None])
    return k, v


@triton.jit
def row_bits(bits_ptr, request, row, real, rows, words, begin, BITS: tl.constexpr):
    """The words of rows that say which of the 64 new rows around ``begin`` they see; without ``BITS`` there are none."""
    word = tl.zeros(row.shape, tl.int64)
    if BITS:
        word = tl.load(bits_ptr + (request * rows + row) * words + begin // 64, mask=real, other=-1)
    return word


@triton.jit
def seen_of_new(word, row, begin, rows, window, NEW_N: tl.constexpr, BITS: tl.constexpr, WINDOW: tl.constexpr):
    """Which of the new rows from ``begin`` on each of the rows ``row`` sees."""
    columns = tl.arange(0, NEW_N)
    seen = (begin + columns < rows)[None, :]
    if BITS:
        seen = seen & (((word[:, None] >> (begin % 64 + columns).to(tl.int64)[None, :]) & 1) != 0)
    if WINDOW:
        away = row[:, None] - (begin + columns)[None, :]
        seen = seen & (tl.maximum(away, -away) < window)
    return seen
