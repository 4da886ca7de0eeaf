"""Cosine and sine of rotary position embedding in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import dependent_launch, let_next_start, wait_for_last


def rope_tables(positions: Tensor, inverse_frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``kernels.layers.rope_tables``: ``positions`` int64 ``[batch, rows]``, frequencies fp32 ``[head_dim / 2]`` -> cosine and
    sine ``[batch, 1, rows, head_dim]``."""
    batch, rows = positions.shape
    half = len(inverse_frequencies)
    cos, sin = torch.empty(2, batch, 1, rows, 2 * half, dtype=dtype, device=positions.device)
    dependent = dependent_launch(positions.device)
    _rope_kernel[(batch * rows,)](
        positions.contiguous(), inverse_frequencies.contiguous(), cos, sin,
        HALF=half, DIMS=triton.next_power_of_2(half), DEPENDENT=dependent, num_warps=1, launch_pdl=dependent,
    )  # fmt: skip
    return cos, sin


@triton.jit
def _rope_kernel(positions_ptr, frequencies_ptr, cos_ptr, sin_ptr, HALF: tl.constexpr, DIMS: tl.constexpr, DEPENDENT: tl.constexpr):
    """A program for each row."""
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, DIMS)
    inside = dims < HALF
    angles = tl.load(positions_ptr + row).to(tl.float32) * tl.load(frequencies_ptr + dims, mask=inside, other=0.0)
    cos, sin = tl.cos(angles).to(cos_ptr.dtype.element_ty), tl.sin(angles).to(sin_ptr.dtype.element_ty)
    for begin in tl.static_range(0, 2 * HALF, HALF):
        at = row * (2 * HALF) + begin + dims
        tl.store(cos_ptr + at, cos, mask=inside)
        tl.store(sin_ptr + at, sin, mask=inside)
