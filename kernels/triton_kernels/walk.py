"""Acceptance on the GPU: one program walks one request's tree along the target's choices."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import dependent_launch, let_next_start, wait_for_last


def walk(tokens: Tensor, parents: Tensor, chosen: Tensor, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """``kernels.acceptance.walk``: three int64 ``[batch, rows]`` -> path ``[batch, longest]``, kept and bonus ``[batch]``."""
    batch, rows = tokens.shape
    if not 1 <= longest <= rows:
        raise ValueError(f"longest {longest}: a path has at least the root and at most the tree's {rows} rows")
    path = torch.empty(batch, longest, dtype=torch.int64, device=tokens.device)
    kept, bonus = torch.empty(2, batch, dtype=torch.int64, device=tokens.device)
    dependent = dependent_launch(tokens.device)
    walk_kernel[(batch,)](
        tokens.contiguous(), parents.contiguous(), chosen.contiguous(), path, kept, bonus, rows, longest,
        ROWS=max(32, triton.next_power_of_2(rows - 1)), LONGEST=triton.next_power_of_2(longest),
        DEPENDENT=dependent, num_warps=1, launch_pdl=dependent,
    )  # fmt: skip
    return path, kept, bonus


@triton.jit
def walk_kernel(
    tokens_ptr, parents_ptr, chosen_ptr, path_ptr, kept_ptr, bonus_ptr, rows, longest,
    ROWS: tl.constexpr, LONGEST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``ROWS`` is at least rows - 1: the root is nobody's child."""
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    request = tl.program_id(0).to(tl.int64)
    row = 1 + tl.arange(0, ROWS)
    exists = row < rows
    tokens = tl.load(tokens_ptr + request * rows + row, mask=exists, other=0)
    parents = tl.load(parents_ptr + request * rows + row, mask=exists, other=-1).to(tl.int32)
    chosen_ptr += request * rows
    place = tl.arange(0, LONGEST)
    path = place
    at = tl.full((), 0, tl.int32)
    kept = tl.full((), 0, tl.int32)
    bonus = tl.load(chosen_ptr)
    following = tl.full((), 0, tl.int32)
    while following >= 0:
        path = tl.where(place == kept, following, path)
        kept += 1
        at = following
        bonus = tl.load(chosen_ptr + at)
        # Children come after their parents, which ends this, whatever was passed; of equal children the last.
        child = (parents == at) & (tokens == bonus) & (row > at) & exists
        following = tl.where(kept < longest, tl.max(tl.where(child, row, -1), 0), -1)
    tl.store(path_ptr + request * longest + place, path.to(tl.int64), mask=place < longest)
    tl.store(kept_ptr + request, kept.to(tl.int64))
    tl.store(bonus_ptr + request, bonus)


def emitted(tokens: Tensor, path: Tensor, kept: Tensor, bonus: Tensor, width: int) -> Tensor:
    """``kernels.acceptance.emitted``: int32 ``[batch, width]``."""
    batch, longest = path.shape
    given = torch.empty(batch, width, dtype=torch.int32, device=path.device)
    emitted_kernel[(batch,)](
        tokens.contiguous(), path, kept, bonus, given, tokens.shape[1], longest, width,
        WIDTH=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip
    return given


@triton.jit
def emitted_kernel(tokens_ptr, path_ptr, kept_ptr, bonus_ptr, given_ptr, rows, longest, width, WIDTH: tl.constexpr):
    request = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH)
    last = tl.load(kept_ptr + request) - 1
    accepted = tl.load(path_ptr + request * longest + place + 1, mask=place < last, other=0)
    token = tl.load(tokens_ptr + request * rows + accepted, mask=place < last, other=-1)
    token = tl.where(place == last, tl.load(bonus_ptr + request), token)
    tl.store(given_ptr + request * width + place, token.to(tl.int32), mask=place < width)
