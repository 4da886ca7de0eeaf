"""Queries, keys and values of new rows: split, normed per head, rotated, keys and values written into the cache: one kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import dependent_launch, let_next_start, wait_for_last
from kernels.triton_kernels.tree_attention import check_caches

_ROWS = 4  # of one head, a program


def rotate_into(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, q_norm: Tensor | None, k_norm: Tensor | None, eps: float,
    keys: Tensor, values: Tensor, lengths: Tensor,
) -> Tensor:  # fmt: skip
    """``kernels.layers.rotate_into``: ``qkv`` ``[batch, rows, (heads + 2 * kv_heads) * head_dim]``, ``cos`` and ``sin``
    ``[batch, 1, rows, head_dim]``, norms ``[head_dim]`` or None, caches ``[batch, kv_heads, capacity, head_dim]`` that share
    their strides, ``lengths`` int64 ``[batch]``. Returns queries ``[batch, heads, rows, head_dim]``, contiguous.

    All in fp32 between the loads and the stores, where the reference rounds bf16 after the norm and after each product.
    Rows behind the capacity are not written.
    """
    batch, rows, _ = qkv.shape
    kv_heads, capacity, head_dim = keys.shape[1:]
    check_caches(keys, values)
    queries = qkv.new_empty(batch, heads, rows, head_dim)
    block = min(_ROWS, triton.next_power_of_2(rows))
    dependent = dependent_launch(qkv.device)
    _rotate_kernel[(heads + 2 * kv_heads, triton.cdiv(rows, block), batch)](
        qkv.contiguous(), cos.contiguous(), sin.contiguous(), q_norm, k_norm, queries, keys, values, lengths,
        rows, capacity, keys.stride(0), keys.stride(1), eps,
        HEADS=heads, KV_HEADS=kv_heads, HALF=head_dim // 2, DIMS=triton.next_power_of_2(head_dim // 2), ROWS=block,
        NORM=q_norm is not None, DEPENDENT=dependent, num_warps=1, launch_pdl=dependent,
    )  # fmt: skip
    return queries


@triton.jit
def normed(first, second, first_norm, second_norm, eps, HALF: tl.constexpr):
    """The RMS norm of heads ``[rows, HALF]`` twice, by the halves of its weight ``[1, HALF]``."""
    scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF) + eps)[:, None]
    return first * scale * first_norm, second * scale * second_norm


@triton.jit
def turned(first, second, cos, sin):
    """Each half of a head against the other."""
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _rotate_kernel(
    qkv_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, queries_ptr, keys_ptr, values_ptr, lengths_ptr,
    rows, capacity, stride_batch, stride_head, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, DIMS: tl.constexpr, ROWS: tl.constexpr,
    NORM: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program for each head, ``ROWS`` rows and request. ``HALF`` of a head is rotated against the other half."""
    let_next_start(DEPENDENT)
    head, request = tl.program_id(0), tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    if NORM:
        norm_ptr = q_norm_ptr if head < HEADS else k_norm_ptr
        first_norm = tl.load(norm_ptr + dims, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
        second_norm = tl.load(norm_ptr + HALF + dims, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    wait_for_last(DEPENDENT)
    written = (row < rows)[:, None] & (dims < HALF)[None, :]
    number = request * rows + row
    source = qkv_ptr + ((number * (HEADS + 2 * KV_HEADS) + head) * (2 * HALF))[:, None] + dims[None, :]
    angles = (number * (2 * HALF))[:, None] + dims[None, :]  # both halves have the same
    # All loads at once, also those that a value's head has no use for: one wait for the memory, not one after another.
    first = tl.load(source, mask=written, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=written, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + angles, mask=written, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + angles, mask=written, other=0.0).to(tl.float32)
    place = tl.load(lengths_ptr + request) + row
    if head < HEADS + KV_HEADS:
        if NORM:
            first, second = normed(first, second, first_norm, second_norm, eps, HALF)
        first, second = turned(first, second, cos, sin)
    if head < HEADS:
        target = queries_ptr + (((request * HEADS + head) * rows + row) * (2 * HALF))[:, None] + dims[None, :]
    else:
        written = written & (place < capacity)[:, None]
        kv_head = (head - HEADS) % KV_HEADS
        cache_ptr = keys_ptr if head < HEADS + KV_HEADS else values_ptr
        target = cache_ptr + request * stride_batch + kv_head * stride_head + (place * (2 * HALF))[:, None] + dims[None, :]
    tl.store(target, first.to(qkv_ptr.dtype.element_ty), mask=written)
    tl.store(target + HALF, second.to(qkv_ptr.dtype.element_ty), mask=written)
