"""The arg-max of every row of logits, in two kernels: of each stretch of the vocabulary, then of the stretches.

Where its log-probability is asked for, they carry sums of exponentials along; the largest logit less itself is 0, so what is left
of it is the logarithm of that sum.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import dependent_launch, let_next_start, wait_for_last

_BLOCK, _PROGRAMS = 2048, 1024


def greedy_rows(logits: Tensor) -> Tensor:
    """``kernels.acceptance.greedy_rows``: ``[batch, rows, vocab]`` -> int64 ``[batch, rows]``; the fewer rows, the more stretches."""
    return _best(logits, scored=False)[0]


def likeliest_with_logprob(logits: Tensor) -> tuple[Tensor, Tensor]:
    """``kernels.sampling.likeliest_with_logprob`` for ``[batch, rows, vocab]`` without NaN: int64 and fp32 ``[batch, rows]``."""
    return _best(logits, scored=True)


def _best(logits: Tensor, scored: bool) -> tuple[Tensor, Tensor | None]:
    batch, rows, vocab = logits.shape
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    blocks = triton.cdiv(vocab, _BLOCK)
    each = triton.cdiv(blocks, max(1, min(blocks, triton.cdiv(_PROGRAMS, batch * rows))))
    stretches = triton.cdiv(blocks, each)
    best = torch.empty(batch * rows, stretches, dtype=torch.int64, device=logits.device)
    ids = torch.empty(batch, rows, dtype=torch.int64, device=logits.device)
    sums = logprobs = None
    if scored:
        sums = torch.empty(2, batch * rows, stretches, dtype=torch.float32, device=logits.device)
        logprobs = torch.empty(batch, rows, dtype=torch.float32, device=logits.device)
    dependent = dependent_launch(logits.device)
    launch = {"SCORED": scored, "DEPENDENT": dependent, "launch_pdl": dependent}
    greedy_of_stretch_kernel[(batch * rows, stretches)](
        logits, best, sums, logits.stride(0), logits.stride(1), rows, vocab, each * _BLOCK, BLOCK=_BLOCK, num_warps=4, **launch
    )
    greedy_of_all_kernel[(batch * rows,)](
        best, sums, ids, logprobs, stretches, STRETCHES=triton.next_power_of_2(stretches), num_warps=1, **launch
    )
    return ids, logprobs


@triton.jit
def greedy_of_stretch_kernel(
    logits_ptr, best_ptr, sums_ptr, stride_batch, stride_row, rows, vocab, length,
    BLOCK: tl.constexpr, SCORED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Value and id in one number that is largest for the largest value and, of equal ones, the smallest id. ``SCORED``: beside
    them the largest value and the sum of exponentials over it, ``[2, rows of all, stretches]``."""
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits_ptr += (row // rows) * stride_batch + (row % rows) * stride_row
    NOTHING: tl.constexpr = -0x80000000  # below every number; a NaN counts as nothing
    best = tl.full((BLOCK,), NOTHING, tl.int32)
    best_id = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    ids = stretch * length + tl.arange(0, BLOCK)
    end = tl.minimum((stretch + 1) * length, vocab)
    base = tl.full((), -3e38, tl.float32)  # finite: less itself it is 0
    total = tl.full((), 0.0, tl.float32)
    while tl.min(ids, 0) < end:
        logits = tl.load(logits_ptr + ids, mask=ids < end, other=float("nan")).to(tl.float32)
        bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)  # -0 equals 0
        keys = tl.where(logits == logits, bits ^ ((bits >> 31) & 0x7FFFFFFF), NOTHING)
        best_id = tl.where(keys > best, ids, best_id)
        best = tl.maximum(best, keys)
        if SCORED:
            logits = tl.where(ids < end, logits, -float("inf"))
            higher = tl.maximum(base, tl.max(logits, 0))
            total = total * tl.exp(base - higher) + tl.sum(tl.exp(logits - higher), 0)
            base = higher
        ids += BLOCK
    packed = (best.to(tl.int64) << 32) | (0x7FFFFFFF - best_id).to(tl.int64)
    at = row * tl.num_programs(1) + stretch
    tl.store(best_ptr + at, tl.max(packed, 0))
    if SCORED:
        tl.store(sums_ptr + at, base)
        tl.store(sums_ptr + tl.num_programs(0).to(tl.int64) * tl.num_programs(1) + at, total)


@triton.jit
def greedy_of_all_kernel(
    best_ptr, sums_ptr, ids_ptr, logprobs_ptr, stretches,
    STRETCHES: tl.constexpr, SCORED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    stretch = tl.arange(0, STRETCHES)
    packed = tl.load(best_ptr + row * stretches + stretch, mask=stretch < stretches, other=-0x8000000000000000)
    best = tl.max(packed, 0)
    # Where every number was NaN: the first.
    tl.store(ids_ptr + row, tl.where((best >> 32) == -0x80000000, 0, 0x7FFFFFFF - (best & 0x7FFFFFFF)))
    if SCORED:
        sums_ptr += row * stretches + stretch
        base = tl.load(sums_ptr, mask=stretch < stretches, other=-3e38)
        sums_ptr += tl.num_programs(0).to(tl.int64) * stretches
        total = tl.load(sums_ptr, mask=stretch < stretches, other=0.0)
        # The sum is at least 1: no log-probability may come out above 0.
        total = tl.maximum(tl.sum(total * tl.exp(base - tl.max(base, 0)), 0), 1.0)
        tl.store(logprobs_ptr + row, -tl.log(total))
