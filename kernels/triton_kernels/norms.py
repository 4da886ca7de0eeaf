"""Two RMS norms, their results side by side, in one kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import dependent_launch, let_next_start, wait_for_last


def norms_side_by_side(first: Tensor, second: Tensor, weights: tuple[Tensor, Tensor], eps: tuple[float, float]) -> Tensor:
    """``kernels.layers.norms_side_by_side``: ``[..., width]`` twice, a norm's weight ``[width]`` and eps for each -> ``[..., 2 * width]``.

    In fp32, rounded once, as the reference rounds.
    """
    width = first.shape[-1]
    out = first.new_empty(*first.shape[:-1], 2 * width)
    padded = triton.next_power_of_2(width)
    dependent = dependent_launch(first.device)
    norms_kernel[(first.numel() // width, 2)](
        first.contiguous(), second.contiguous(), *weights, out, width, *eps, PADDED=padded, DEPENDENT=dependent,
        num_warps=8 if padded > 2048 else 4, launch_pdl=dependent,
    )  # fmt: skip
    return out


@triton.jit
def norms_kernel(
    first_ptr, second_ptr, first_weight_ptr, second_weight_ptr, out_ptr, width, first_eps, second_eps,
    PADDED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program for each row of each."""
    let_next_start(DEPENDENT)
    row, which = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, PADDED)
    inside = dims < width
    weight_ptr = first_weight_ptr if which == 0 else second_weight_ptr
    weight = tl.load(weight_ptr + dims, mask=inside, other=0.0).to(tl.float32)
    wait_for_last(DEPENDENT)
    x_ptr = first_ptr if which == 0 else second_ptr
    x = tl.load(x_ptr + row * width + dims, mask=inside, other=0.0).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / width + tl.where(which == 0, first_eps, second_eps)) * weight
    tl.store(out_ptr + (row * 2 + which) * width + dims, x.to(out_ptr.dtype.element_ty), mask=inside)
