"""The size of a round's trees on the GPU: one program, in place of a dozen torch operations between draft and verification."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import dependent_launch, let_next_start, wait_for_last


def pick_size(logprobs: Tensor, lengths: Tensor, rows: Tensor, contexts: Tensor, round_s: Tensor, picked: Tensor) -> None:
    """``kernels.size.pick_size``; ``round_s`` contiguous."""
    batch, most = logprobs.shape
    dependent = dependent_launch(logprobs.device)
    pick_size_kernel[(1,)](
        logprobs.contiguous(), lengths, rows, contexts, round_s, picked, batch, most, len(contexts), len(rows),
        ROWS=triton.next_power_of_2(most), SIZES=triton.next_power_of_2(len(rows)),
        DEPENDENT=dependent, num_warps=4, launch_pdl=dependent,
    )  # fmt: skip


@triton.jit
def pick_size_kernel(
    logprobs_ptr, lengths_ptr, rows_ptr, contexts_ptr, round_s_ptr, picked_ptr, batch, most, contexts, sizes,
    ROWS: tl.constexpr, SIZES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_next_start(DEPENDENT)
    place, size = tl.arange(0, ROWS), tl.arange(0, SIZES)
    rows = tl.load(rows_ptr + size, mask=size < sizes, other=0).to(tl.int32)
    at_least = tl.load(contexts_ptr)
    at_most = tl.load(contexts_ptr + contexts - 1)
    wait_for_last(DEPENDENT)
    promised = tl.zeros((ROWS,), tl.float32)
    longest = tl.full((), 0, tl.int64)
    for request in range(batch):
        logprob = tl.load(logprobs_ptr + request * most + place, mask=place < most, other=float("-inf"))
        promised += tl.exp(logprob.to(tl.float32))
        longest = tl.maximum(longest, tl.load(lengths_ptr + request))
    tokens = tl.sum(tl.where(place[None, :] < rows[:, None], promised[None, :], 0.0), 1)

    context = tl.minimum(tl.maximum(longest.to(tl.float64), at_least), at_most)
    cost = tl.load(round_s_ptr + size, mask=size < sizes, other=1.0)
    for above in range(1, contexts):
        low, high = tl.load(contexts_ptr + above - 1), tl.load(contexts_ptr + above)
        below_s = tl.load(round_s_ptr + (above - 1) * sizes + size, mask=size < sizes, other=1.0)
        above_s = tl.load(round_s_ptr + above * sizes + size, mask=size < sizes, other=1.0)
        cost = tl.where(context > low, below_s + (above_s - below_s) * ((context - low) / (high - low)), cost)
    a_second = tl.where(size < sizes, tokens.to(tl.float64) / cost, -1.0)
    tl.store(picked_ptr, tl.argmax(a_second, 0).to(tl.int64))
