"""Commit on the GPU: the caches of all layers keep the rows of the accepted paths, in one launch and in place."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import dependent_launch, let_next_start, wait_for_last


def keep_rows(caches: Tensor, lengths: Tensor, path: Tensor) -> None:
    """``kernels.cache.keep_rows``: rows ``lengths[b] + path[b, i]`` go to ``lengths[b] + i``.

    ``caches`` ``[layers, 2, batch, kv_heads, capacity, head_dim]``, head_dim contiguous; ``lengths`` int64 ``[batch]``;
    ``path`` int64 ``[batch, longest]``, ascending. Rows that stay where they are are neither read nor written.
    """
    layers, two, batch, kv_heads, capacity, head_dim = caches.shape
    if caches.stride(5) != 1:
        raise ValueError(f"caches with strides {caches.stride()}: the numbers of a row must be contiguous")
    longest = path.shape[1]
    dependent = dependent_launch(caches.device)
    keep_rows_kernel[(layers * two * batch * kv_heads,)](
        caches, lengths, path.contiguous(), two, batch, kv_heads, capacity, longest, *caches.stride()[:5],
        LONGEST=triton.next_power_of_2(longest), HEAD=head_dim, PADDED=triton.next_power_of_2(head_dim),
        DEPENDENT=dependent, num_warps=4, launch_pdl=dependent,
    )  # fmt: skip


@triton.jit
def keep_rows_kernel(
    caches_ptr, lengths_ptr, path_ptr, two, batch, kv_heads, capacity, longest,
    stride_layer, stride_two, stride_batch, stride_head, stride_row,
    LONGEST: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One layer's keys or values of one request's head."""
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    program = tl.program_id(0)
    head = program % kv_heads
    request = (program // kv_heads) % batch
    which = (program // (kv_heads * batch)) % two
    layer = program // (kv_heads * batch * two)
    caches_ptr += layer.to(tl.int64) * stride_layer + which.to(tl.int64) * stride_two
    caches_ptr += request.to(tl.int64) * stride_batch + head.to(tl.int64) * stride_head
    length = tl.load(lengths_ptr + request)
    to = tl.arange(0, LONGEST)
    begin = tl.load(path_ptr + request * longest + to, mask=to < longest, other=0)
    moved = (to < longest) & (begin > to) & (length + begin < capacity)
    dim = tl.arange(0, PADDED)
    mask = moved[:, None] & (dim < HEAD)[None, :]
    rows = tl.load(caches_ptr + (length + begin)[:, None] * stride_row + dim[None, :], mask=mask, other=0.0)
    tl.debug_barrier()  # a row may be where another goes: all are read before one is written
    tl.store(caches_ptr + (length + to)[:, None] * stride_row + dim[None, :], rows, mask=mask)


def keep_slots(first: Tensor, addresses: Tensor, slots: Tensor, starts: Tensor, path: Tensor) -> None:
    """``kernels.paged.PagedCaches.keep``: every layer's keys and values, which begin at ``addresses`` and are like ``first``."""
    _, page, kv_heads, head_dim = first.shape
    if first.stride(3) != 1:
        raise ValueError(f"caches with strides {first.stride()}: the numbers of a row must be contiguous")
    batch, longest = path.shape
    keep_slots_kernel[(len(addresses) * batch * kv_heads,)](
        first, addresses, slots, starts, path.contiguous(), batch, kv_heads, longest, *first.stride()[:3],
        PAGE=page, LONGEST=triton.next_power_of_2(longest), HEAD=head_dim, PADDED=triton.next_power_of_2(head_dim), num_warps=4,
    )  # fmt: skip


@triton.jit
def keep_slots_kernel(
    first_ptr, addresses_ptr, slots_ptr, starts_ptr, path_ptr, batch, kv_heads, longest, stride_page, stride_row, stride_head,
    PAGE: tl.constexpr, LONGEST: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """One layer's keys or values of one request's head. ``first_ptr`` tells the type of the numbers alone."""
    program = tl.program_id(0)
    head = program % kv_heads
    request = (program // kv_heads) % batch
    cache_ptr = tl.load(addresses_ptr + program // (kv_heads * batch)).to(first_ptr.dtype) + head.to(tl.int64) * stride_head
    slots_ptr += tl.load(starts_ptr + request)
    to = tl.arange(0, LONGEST)
    begin = tl.load(path_ptr + request * longest + to, mask=to < longest, other=0)
    moved = (to < longest) & (begin > to)
    source = tl.load(slots_ptr + begin, mask=moved, other=0)
    target = tl.load(slots_ptr + to, mask=moved, other=0)
    dim = tl.arange(0, PADDED)
    mask = moved[:, None] & (dim < HEAD)[None, :]
    source = source // PAGE * stride_page + source % PAGE * stride_row
    target = target // PAGE * stride_page + target % PAGE * stride_row
    rows = tl.load(cache_ptr + source[:, None] + dim[None, :], mask=mask, other=0.0)
    tl.debug_barrier()  # a row may be where another goes: all are read before one is written
    tl.store(cache_ptr + target[:, None] + dim[None, :], rows, mask=mask)
