"""The arg-max of every row of logits, in two kernels: of each stretch of the vocabulary, then of the stretches."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _PROGRAMS = 2048, 1024


def greedy_rows(logits: Tensor) -> Tensor:
    """``kernels.acceptance.greedy_rows``: ``[batch, rows, vocab]`` -> int64 ``[batch, rows]``; the fewer rows, the more stretches."""
    batch, rows, vocab = logits.shape
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    blocks = triton.cdiv(vocab, _BLOCK)
    each = triton.cdiv(blocks, max(1, min(blocks, triton.cdiv(_PROGRAMS, batch * rows))))
    stretches = triton.cdiv(blocks, each)
    best = torch.empty(batch * rows, stretches, dtype=torch.int64, device=logits.device)
    ids = torch.empty(batch, rows, dtype=torch.int64, device=logits.device)
    greedy_of_stretch_kernel[(batch * rows, stretches)](
        logits, best, logits.stride(0), logits.stride(1), rows, vocab, each * _BLOCK, BLOCK=_BLOCK, num_warps=4
    )
    greedy_of_all_kernel[(batch * rows,)](
        best, ids, stretches, STRETCHES=triton.next_power_of_2(stretches), num_warps=1
    )
    return ids


@triton.jit
def greedy_of_stretch_kernel(logits_ptr, best_ptr, stride_batch, stride_row, rows, vocab, length, BLOCK: tl.constexpr):
    """Value and id in one number that is largest for the largest value and, of equal ones, the smallest id."""
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits_ptr += (row // rows) * stride_batch + (row % rows) * stride_row
    NOTHING: tl.constexpr = -0x80000000  # below every number; a NaN counts as nothing
    best = tl.full((BLOCK,), NOTHING, tl.int32)
    best_id = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    ids = stretch * length + tl.arange(0, BLOCK)
    end = tl.minimum((stretch + 1) * length, vocab)
    while tl.min(ids, 0) < end:
        logits = tl.load(logits_ptr + ids, mask=ids < end, other=float("nan")).to(tl.float32)
        bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)  # -0 equals 0
        keys = tl.where(logits == logits, bits ^ ((bits >> 31) & 0x7FFFFFFF), NOTHING)
        best_id = tl.where(keys > best, ids, best_id)
        best = tl.maximum(best, keys)
        ids += BLOCK
    packed = (best.to(tl.int64) << 32) | (0x7FFFFFFF - best_id).to(tl.int64)
    tl.store(best_ptr + row * tl.num_programs(1) + stretch, tl.max(packed, 0))


@triton.jit
def greedy_of_all_kernel(best_ptr, ids_ptr, stretches, STRETCHES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    stretch = tl.arange(0, STRETCHES)
    packed = tl.load(best_ptr + row * stretches + stretch, mask=stretch < stretches, other=-0x8000000000000000)
    best = tl.max(packed, 0)
    # Where every number was NaN: the first.
    tl.store(ids_ptr + row, tl.where((best >> 32) == -0x80000000, 0, 0x7FFFFFFF - (best & 0x7FFFFFFF)))
