"""Chains of drafted tokens on the GPU: a program for each request."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import dependent_launch, let_next_start, wait_for_last


def chain_columns(bonus: Tensor, drafted: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """``kernels.chains.chain_columns``; both columns are contiguous."""
    batch, rows = len(bonus), 1 + drafted.shape[1]
    tokens = torch.empty(batch, rows, dtype=torch.int64, device=bonus.device)
    prefix = torch.empty(batch, rows, dtype=torch.float32, device=bonus.device)
    dependent = dependent_launch(bonus.device)
    chain_columns_kernel[(batch,)](
        bonus, drafted.contiguous(), logprobs.contiguous(), tokens, prefix, rows,
        ROWS=triton.next_power_of_2(rows), DEPENDENT=dependent, num_warps=1, launch_pdl=dependent,
    )  # fmt: skip
    return tokens, prefix


@triton.jit
def chain_columns_kernel(
    bonus_ptr, drafted_ptr, logprobs_ptr, tokens_ptr, prefix_ptr, rows, ROWS: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    request = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    below = (row > 0) & (row < rows)
    source = request * (rows - 1) + row - 1
    tokens = tl.load(drafted_ptr + source, mask=below, other=0)
    logprobs = tl.load(logprobs_ptr + source, mask=below, other=0.0)
    tokens = tl.where(row == 0, tl.load(bonus_ptr + request), tokens)
    tl.store(tokens_ptr + request * rows + row, tokens, mask=row < rows)
    tl.store(prefix_ptr + request * rows + row, tl.cumsum(logprobs, 0), mask=row < rows)


def following_tokens(tokens: Tensor, counts: Tensor, bonus: Tensor) -> tuple[Tensor, Tensor]:
    """``kernels.chains.following_tokens``."""
    batch, rows = tokens.shape
    following = torch.empty(batch, rows, dtype=torch.int64, device=tokens.device)
    last = torch.empty_like(counts)
    dependent = dependent_launch(tokens.device)
    following_tokens_kernel[(batch,)](
        tokens, counts, bonus, following, last, rows, tokens.stride(0), tokens.stride(1),
        ROWS=triton.next_power_of_2(rows), DEPENDENT=dependent, num_warps=1, launch_pdl=dependent,
    )  # fmt: skip
    return following, last


@triton.jit
def following_tokens_kernel(
    tokens_ptr, counts_ptr, bonus_ptr, following_ptr, last_ptr, rows, stride_batch, stride_row,
    ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    request = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, ROWS)
    last = tl.maximum(tl.load(counts_ptr + request) - 1, 0)
    bonus = tl.load(bonus_ptr + request)
    tokens = tl.load(tokens_ptr + request * stride_batch + (row + 1) * stride_row, mask=row + 1 < rows, other=0)
    tokens = tl.where((row == last) | (row == rows - 1), bonus, tokens)
    tl.store(following_ptr + request * rows + row, tokens, mask=row < rows)
    tl.store(last_ptr + request, last)
