"""The likeliest tokens of every slot, in two kernels over groups of neighbouring ids.

The first reads the vocabulary once and keeps the largest logit of every group, groups of groups, and sums of exponentials. The
``width`` best tokens lie in the ``width`` best groups, groups ordered by their largest logit, then by id: each of the ``width``
groups before another holds a token that is before all of that other's. So the second kernel takes that many groups of groups,
of their groups again as many, of these groups' tokens again as many, and sorts them. With a cube root of vocab / width members
in a group all three choices are among few numbers.

To choose, values become integers that order alike; the ``width``-th largest is found by halving the interval that it lies in
and counting, which needs no sorting and costs the same for every width. Everything above it is taken, and of what equals it
the first. What is taken stays in order of ids, so that position decides ties again in the next choice.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_WIDTH = 512
_STRETCH = 4096


def ranked_candidates(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """``kernels.tree.ranked_candidates`` for ``logits`` ``[batch, slots, vocab]`` in bf16, fp16 or fp32, without NaN.

    Log-probabilities fp32 and ids int64, ``[batch, slots, width]``, best first, equal logits by smaller id. The order is the
    reference's exactly; log-probabilities differ by the rounding of the sum of exponentials.
    """
    batch, slots, vocab = logits.shape
    if not 1 <= width <= min(vocab, LARGEST_WIDTH):
        raise ValueError(f"width {width}: at least 1, at most {LARGEST_WIDTH} and the vocabulary of {vocab} are supported")
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    rows, stretches, device = batch * slots, triton.cdiv(vocab, _STRETCH), logits.device
    padded = triton.next_power_of_2(width)
    members = min(32, triton.next_power_of_2(int((vocab / width) ** (1 / 3)) + 1))
    groups, outer = triton.cdiv(vocab, members), triton.cdiv(vocab, members * members)
    of_groups = torch.empty(rows, groups, dtype=torch.float32, device=device)
    of_outer = torch.empty(rows, outer, dtype=torch.float32, device=device)
    bases, totals = torch.empty(2, rows, stretches, dtype=torch.float32, device=device)
    largest_of_groups_kernel[(rows, stretches)](
        logits, of_groups, of_outer, bases, totals, logits.stride(0), logits.stride(1), slots, vocab, groups, outer,
        MEMBERS=members, GROUPS=_STRETCH // members, num_warps=4,
    )  # fmt: skip
    logprobs = torch.empty(batch, slots, width, dtype=torch.float32, device=device)
    ids = torch.empty(batch, slots, width, dtype=torch.int64, device=device)
    taken = torch.empty(rows, 2, width, dtype=torch.int32, device=device)
    all_outer = max(padded, triton.next_power_of_2(outer))
    best_of_groups_kernel[(rows,)](
        logits, of_groups, of_outer, bases, totals, taken, logprobs, ids,
        logits.stride(0), logits.stride(1), slots, vocab, groups, outer, stretches,
        WIDTH=width, PADDED=padded, MEMBERS=members, OUTER=all_outer, STRETCHES=triton.next_power_of_2(stretches),
        NARROW=logits.dtype == torch.bfloat16, num_warps=8 if max(all_outer, padded * members) > 1024 else 4,
    )  # fmt: skip
    return logprobs, ids


@triton.jit
def largest_of_groups_kernel(
    logits_ptr, groups_ptr, outer_ptr, base_ptr, total_ptr, stride_batch, stride_slot, slots, vocab, groups, outer,
    MEMBERS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Of one stretch the largest logit of its groups and groups of groups, and the sum of exponentials over the largest."""
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits_ptr += (row // slots) * stride_batch + (row % slots) * stride_slot
    group = stretch * GROUPS + tl.arange(0, GROUPS)
    ids = group[:, None] * MEMBERS + tl.arange(0, MEMBERS)[None, :]
    logits = tl.load(logits_ptr + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    largest = tl.max(logits, 1)
    tl.store(groups_ptr + row * groups + group, largest, mask=group < groups)
    above = stretch * (GROUPS // MEMBERS) + tl.arange(0, GROUPS // MEMBERS)
    largest = tl.max(tl.reshape(largest, (GROUPS // MEMBERS, MEMBERS)), 1)
    tl.store(outer_ptr + row * outer + above, largest, mask=above < outer)
    base = tl.max(largest, 0)
    base = tl.where(base == -float("inf"), 0.0, base)
    total = tl.sum(tl.sum(tl.exp(logits - base), 1), 0)
    tl.store(base_ptr + row * tl.num_programs(1) + stretch, base)
    tl.store(total_ptr + row * tl.num_programs(1) + stretch, total)


@triton.jit
def _keys(logits, exists, NARROW: tl.constexpr):
    """int32 that order like the fp32 ``logits``, -0 equal to 0, what does not exist last; ``NARROW``: they were bfloat16."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if NARROW:  # the lower half of the bits says nothing: fewer steps to find a key
        keys = keys >> 16
    return tl.where(exists, keys, -0x80000000)


@triton.jit
def _chosen(keys, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Which of the int32 ``keys`` are the ``WIDTH`` largest, equal ones from the left, and each one's place among them."""
    # Each of PADDED parts holds a key of at least this, so at least WIDTH keys are not below it.
    parts = tl.reshape(keys, (PADDED, keys.shape[0] // PADDED))
    least = tl.min(tl.max(parts, 1), 0)
    most = tl.max(keys, 0)
    while least < most:
        middle = (least | most) - ((least ^ most) >> 1)  # the mean, rounded up, without overflow
        count = tl.sum((keys >= middle).to(tl.int32), 0)
        most = tl.where(count > WIDTH, most, tl.where(count == WIDTH, middle, middle - 1))
        least = tl.where(count >= WIDTH, middle, least)
    above, equal = keys > least, keys == least
    counted = (above.to(tl.int32) << 16) | equal.to(tl.int32)
    before = tl.cumsum(counted, 0) - counted
    wanted = WIDTH - tl.sum(above.to(tl.int32), 0)
    equals_before = before & 0xFFFF
    return above | (equal & (equals_before < wanted)), (before >> 16) + tl.minimum(equals_before, wanted)


@triton.jit
def _members(taken_ptr, last, WIDTH: tl.constexpr, PADDED: tl.constexpr, MEMBERS: tl.constexpr):
    """The members of the groups listed at ``taken_ptr``, ``[PADDED * MEMBERS]``; ``last`` and above do not exist."""
    each = tl.arange(0, PADDED * MEMBERS)
    group = tl.load(taken_ptr + each // MEMBERS, mask=each < WIDTH * MEMBERS, other=last)
    return group * MEMBERS + each % MEMBERS


@triton.jit
def best_of_groups_kernel(
    logits_ptr, groups_ptr, outer_ptr, base_ptr, total_ptr, taken_ptr, logprobs_ptr, ids_ptr,
    stride_batch, stride_slot, slots, vocab, groups, outer, stretches,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, MEMBERS: tl.constexpr, OUTER: tl.constexpr, STRETCHES: tl.constexpr,
    NARROW: tl.constexpr,
):  # fmt: skip
    """The best ``WIDTH`` tokens of one row, sorted, with log-probabilities."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += (row // slots) * stride_batch + (row % slots) * stride_slot
    taken_ptr += row * (2 * WIDTH)
    logprobs_ptr += row * WIDTH
    ids_ptr += row * WIDTH
    stretch = tl.arange(0, STRETCHES)
    base = tl.load(base_ptr + row * stretches + stretch, mask=stretch < stretches, other=-float("inf"))
    total = tl.load(total_ptr + row * stretches + stretch, mask=stretch < stretches, other=0.0)
    highest = tl.max(base, 0)
    # The logarithm is of at least 1: no log-probability may come out above 0.
    normaliser = highest + tl.maximum(tl.log(tl.sum(total * tl.exp(base - highest), 0)), 0.0)

    group = tl.arange(0, OUTER)
    largest = tl.load(outer_ptr + row * outer + group, mask=group < outer, other=0.0)
    chosen, place = _chosen(_keys(largest, group < outer, NARROW), WIDTH, PADDED)
    tl.store(taken_ptr + place, group, mask=chosen)
    tl.debug_barrier()
    group = _members(taken_ptr, outer, WIDTH, PADDED, MEMBERS)
    largest = tl.load(groups_ptr + row * groups + group, mask=group < groups, other=0.0)
    chosen, place = _chosen(_keys(largest, group < groups, NARROW), WIDTH, PADDED)
    tl.store(taken_ptr + WIDTH + place, group, mask=chosen)
    tl.debug_barrier()
    ids = _members(taken_ptr + WIDTH, groups, WIDTH, PADDED, MEMBERS)
    logits = tl.load(logits_ptr + ids, mask=ids < vocab, other=0.0).to(tl.float32)
    keys = _keys(logits, ids < vocab, NARROW)
    chosen, place = _chosen(keys, WIDTH, PADDED)
    # Larger key first, then smaller id, in one number. It passes through memory to where the ids will be.
    tl.store(ids_ptr + place, (keys.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64), mask=chosen)
    tl.debug_barrier()
    rank = tl.arange(0, PADDED)
    packed = tl.load(ids_ptr + rank, mask=rank < WIDTH, other=-0x8000000000000000)
    tl.debug_barrier()
    packed = tl.sort(packed, descending=True)
    keys = (packed >> 32).to(tl.int32)
    if NARROW:
        keys = (keys << 16) | tl.where(keys < 0, 0xFFFF, 0)
    logits = (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    tl.store(logprobs_ptr + rank, tl.minimum(logits - normaliser, 0.0), mask=rank < WIDTH)
    # Not above the vocabulary, whatever NaN did to the order.
    tl.store(ids_ptr + rank, tl.minimum(0x7FFFFFFF - (packed & 0x7FFFFFFF), vocab - 1), mask=rank < WIDTH)
