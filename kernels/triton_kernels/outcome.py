"""The end of a round on the GPU: one program settles one request."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import dependent_launch, let_next_start, wait_for_last


def settle(
    tokens: Tensor, depths: Tensor, path: Tensor, kept: Tensor, bonus: Tensor, lengths: Tensor, reach: int,
    given: Tensor, last: Tensor, report: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``kernels.outcome.settle``, all int64; ``tokens`` may share ``last``'s memory."""
    (batch, rows), longest = tokens.shape, path.shape[1]
    accepted, still = torch.empty_like(path), torch.empty_like(kept)
    dependent = dependent_launch(tokens.device)
    settle_kernel[(batch,)](
        tokens.contiguous(), depths.contiguous(), path.contiguous(), kept, bonus, lengths, given, last, report, accepted, still,
        rows, longest, reach, report.stride(0), ROWS=triton.next_power_of_2(rows), LONGEST=triton.next_power_of_2(longest),
        DEPENDENT=dependent, num_warps=1, launch_pdl=dependent,
    )  # fmt: skip
    return accepted, still


@triton.jit(do_not_specialize=["reach"])
def settle_kernel(
    tokens_ptr, depths_ptr, path_ptr, kept_ptr, bonus_ptr, lengths_ptr, given_ptr, last_ptr, report_ptr, accepted_ptr, still_ptr,
    rows, longest, reach, stride_report, ROWS: tl.constexpr, LONGEST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    request = tl.program_id(0).to(tl.int64)
    tokens_ptr += request * rows
    path_ptr += request * longest
    report_ptr += request * stride_report
    row = tl.arange(0, ROWS)
    place = tl.arange(0, LONGEST)
    depths = tl.load(depths_ptr + request * rows + row, mask=row < rows, other=0).to(tl.int32)
    kept = tl.load(kept_ptr + request)
    bonus = tl.load(bonus_ptr + request)
    given = tl.load(given_ptr + request)
    kept = tl.where(tl.load(lengths_ptr + request) <= reach, kept, 0)
    accepted = tl.load(tokens_ptr + tl.load(path_ptr + place, mask=place < longest, other=0), mask=place < longest, other=0)
    inner = place + 1 < longest
    following = tl.load(tokens_ptr + tl.load(path_ptr + place + 1, mask=inner, other=0), mask=inner, other=0)
    following = tl.where((place == kept - 1) | (place == longest - 1), bonus, following)
    deepest = tl.max(depths, 0)
    width = tl.full((), 0, tl.int32)
    depth = tl.full((), 1, tl.int32)
    while depth <= deepest:
        width = tl.maximum(width, tl.sum((depths == depth).to(tl.int32), 0))
        depth += 1
    tl.debug_barrier()  # all is read before `last` is written
    tl.store(accepted_ptr + request * longest + place, accepted, mask=place < longest)
    tl.store(still_ptr + request, kept)
    tl.store(given_ptr + request, given + kept)
    tl.store(last_ptr + request, bonus)
    tl.store(report_ptr, kept)
    tl.store(report_ptr + 1, rows - 1)
    tl.store(report_ptr + 2, deepest.to(tl.int64))
    tl.store(report_ptr + 3, width.to(tl.int64))
    tl.store(report_ptr + 4 + place, following, mask=place < longest)
