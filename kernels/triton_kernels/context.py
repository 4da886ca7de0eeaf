"""A drafter's context on the GPU: all layers' keys and values of new rows, keys normed and rotated, into the cache: one kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import dependent_launch, let_next_start, wait_for_last
from kernels.triton_kernels.rotate import normed, turned

_ROWS = 4  # of one head, a program


def write_context(both: Tensor, frequencies: Tensor, norms: Tensor, eps: float, cache: Tensor, lengths: Tensor) -> None:
    """``kernels.layers.write_context``: ``both`` ``[batch, rows, layers * 2 * kv_heads * head_dim]``, ``frequencies`` fp32
    ``[head_dim / 2]``, ``norms`` ``[layers, head_dim]``, ``cache`` ``[layers, 2, batch, kv_heads, capacity, head_dim]`` of whole
    rows, ``lengths`` int64 ``[batch]``.

    In fp32 between the loads and the stores but for cosine and sine, which are rounded as tables of them are; the reference
    rounds bf16 after the norm and after each product too. Rows behind the capacity are not written.
    """
    layers, _, batch, kv_heads, capacity, head_dim = cache.shape
    if cache.stride(4) != head_dim or cache.stride(5) != 1:
        raise ValueError(f"a cache of strides {cache.stride()}: whole rows are needed")
    rows = both.shape[1]
    block = min(_ROWS, triton.next_power_of_2(rows))
    dependent = dependent_launch(both.device)
    write_context_kernel[(layers * 2 * kv_heads, triton.cdiv(rows, block), batch)](
        both.contiguous(), frequencies.contiguous(), norms.contiguous(), cache, lengths, rows, capacity, *cache.stride()[:4], eps,
        LAYERS=layers, KV_HEADS=kv_heads, HALF=head_dim // 2, DIMS=triton.next_power_of_2(head_dim // 2), ROWS=block,
        DEPENDENT=dependent, num_warps=1, launch_pdl=dependent,
    )  # fmt: skip


@triton.jit
def write_context_kernel(
    both_ptr, frequencies_ptr, norms_ptr, cache_ptr, lengths_ptr, rows, capacity,
    stride_layer, stride_two, stride_batch, stride_head, eps,
    LAYERS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, DIMS: tl.constexpr, ROWS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program for each layer's keys or values of a head, ``ROWS`` rows and request. ``HALF`` of a head turns against the other."""
    let_next_start(DEPENDENT)
    part, request = tl.program_id(0), tl.program_id(2).to(tl.int64)
    layer, which, head = part // (2 * KV_HEADS), part // KV_HEADS % 2, part % KV_HEADS
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    inside = dims < HALF
    norms_ptr += layer * (2 * HALF) + dims
    first_norm = tl.load(norms_ptr, mask=inside, other=0.0).to(tl.float32)[None, :]
    second_norm = tl.load(norms_ptr + HALF, mask=inside, other=0.0).to(tl.float32)[None, :]
    frequencies = tl.load(frequencies_ptr + dims, mask=inside, other=0.0)[None, :]
    wait_for_last(DEPENDENT)
    read = (row < rows)[:, None] & inside[None, :]
    source = both_ptr + (((request * rows + row) * (LAYERS * 2 * KV_HEADS) + part) * (2 * HALF))[:, None] + dims[None, :]
    first = tl.load(source, mask=read, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=read, other=0.0).to(tl.float32)
    place = tl.load(lengths_ptr + request) + row
    if which == 0:
        angles = place.to(tl.float32)[:, None] * frequencies
        cos = tl.cos(angles).to(both_ptr.dtype.element_ty).to(tl.float32)
        sin = tl.sin(angles).to(both_ptr.dtype.element_ty).to(tl.float32)
        first, second = normed(first, second, first_norm, second_norm, eps, HALF)
        first, second = turned(first, second, cos, sin)
    cache_ptr += layer.to(tl.int64) * stride_layer + which.to(tl.int64) * stride_two + request * stride_batch + head * stride_head
    target = cache_ptr + (place * (2 * HALF))[:, None] + dims[None, :]
    written = read & (place < capacity)[:, None]
    tl.store(target, first.to(both_ptr.dtype.element_ty), mask=written)
    tl.store(target + HALF, second.to(both_ptr.dtype.element_ty), mask=written)
