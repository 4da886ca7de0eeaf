"""Products of few rows with a weight matrix, one kernel each with what stands around them.

For rows that one decoding round has: the time is that of reading the weights. The norm's weight is multiplied onto x as it is
loaded; the sum of squares grows in the same loop and scales the result at the end, since it is the same for all of a row.

Rounding. fp32: the same operations in another order, so a few units in the last place of the sum of magnitudes. bf16: x times
the norm's weight is rounded once (up to four rows that are streamed: not at all) where the reference rounds the normed x; the
product stays in fp32 until the residual, or the gate, is applied, where the reference rounds it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from kernels.triton_kernels.launch import COUNTERS, counters, dependent_launch
from kernels.triton_kernels.some_rows import some_rows_kernel
from kernels.triton_kernels.streamed_rows import PIECE, streamed_rows_kernel
from kernels.triton_kernels.tiles import MOST_ROWS, Tile, tile

DTYPES = (torch.float32, torch.bfloat16)
LINES_AHEAD = 4  # cache lines of a row of weights that are asked for before the kernel before has ended


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether the products here take ``x`` ``[..., inputs]``; of more rows a library's product is as good."""
    return 0 < x.numel() // x.shape[-1] <= MOST_ROWS and x.dtype == weight.dtype and x.dtype in DTYPES


class Scaled(NamedTuple):
    """Hidden states on their way to a norm: ``values`` ``[..., inputs]``, times its weight, rounded; ``squares`` fp32
    ``[tiles, rows]``, the sum over tiles being a row's sum of squares before that."""

    values: Tensor
    squares: Tensor


def norm_linear(x: Tensor, norm: Tensor, eps: float, weight: Tensor, scaled: Scaled | None = None) -> Tensor:
    """RMS norm of ``x`` ``[..., inputs]`` times ``weight`` ``[outputs, inputs]`` -> ``[..., outputs]``; ``scaled`` spares work."""
    return product(x, weight, norm=norm, eps=eps, scaled=scaled)[0]


def linear_add(x: Tensor, weight: Tensor, residual: Tensor, following: Tensor | None = None) -> tuple[Tensor, Scaled | None]:
    """``residual`` ``[..., outputs]`` + ``x`` ``[..., inputs]`` times ``weight`` ``[outputs, inputs]``; and, if it can be had, the
    same ``Scaled`` for the norm with the weight ``following``."""
    return product(x, weight, residual=residual, following=following)


def norm_swiglu(x: Tensor, norm: Tensor, eps: float, gate_up: Tensor, scaled: Scaled | None = None) -> Tensor:
    """silu(gate) * up of the RMS norm of ``x``; ``gate_up`` ``[2 * outputs, inputs]``, gate first -> ``[..., outputs]``."""
    return product(x, gate_up, norm=norm, eps=eps, gated=True, scaled=scaled)[0]


def product(
    x: Tensor, weight: Tensor, *, norm: Tensor | None = None, eps: float = 0.0, gated: bool = False,
    residual: Tensor | None = None, scaled: Scaled | None = None, following: Tensor | None = None, cut: Tile | None = None,
) -> tuple[Tensor, Scaled | None]:  # fmt: skip
    """All three of them; ``cut`` instead of the tile that the shape has, for measuring. A product of streamed rows neither takes
    ``scaled`` nor makes any: it has the norm's sums from ``x``, and the product behind it does without."""
    inputs = x.shape[-1]
    outputs = weight.shape[0] // (2 if gated else 1)
    rows = x.numel() // inputs
    cut = cut or tile(rows, outputs, inputs, gated, x.dtype)
    x, weight = x.contiguous(), weight.contiguous()
    residual, norm, following = (None if each is None else each.contiguous() for each in (residual, norm, following))
    out = x.new_empty(*x.shape[:-1], outputs)
    dependent = dependent_launch(x.device)
    shape = {"N": outputs, "K": inputs, "NORM": norm is not None, "GATED": gated, "ADD": residual is not None}
    launch = {"DEPENDENT": dependent, "num_warps": cut.warps, "num_stages": cut.stages, "launch_pdl": dependent}
    n_tiles = triton.cdiv(outputs, cut.block_n)
    if cut.streams:
        if rows > cut.block_m:
            raise ValueError(f"{rows} rows cannot be streamed: {cut.block_m} at most")
        streamed_rows_kernel[(n_tiles,)](
            x, norm, weight, residual, out, rows, eps, ROWS=cut.block_m, BLOCK_N=cut.block_n, PIECES=cut.block_k // PIECE, **shape, **launch
        )
        return out, None
    m_tiles = triton.cdiv(rows, cut.block_m)
    partial = counter = None
    if cut.split > 1:
        floats = cut.block_m * (cut.block_n * (2 if gated else 1) + 1)
        partial = torch.empty(n_tiles * m_tiles * cut.split * floats, dtype=torch.float32, device=x.device)
        counter = counters(x.device)
        if n_tiles * m_tiles > COUNTERS:
            raise ValueError(f"{n_tiles * m_tiles} tiles cannot be split: {COUNTERS} at most")
    steps = triton.cdiv(max(0, triton.cdiv(inputs, cut.split) - cut.early), cut.block_k)
    values, squares = (x, None) if scaled is None else scaled
    ahead = Scaled(torch.empty_like(out), out.new_empty(n_tiles, rows, dtype=torch.float32)) if following is not None else None
    some_rows_kernel[(n_tiles, cut.split, m_tiles)](
        values, norm, weight, residual, out, partial, counter, squares, following, *(ahead or (None, None)), rows, eps,
        SQUARES=0 if squares is None else len(squares), NEXT=ahead is not None, BLOCK_M=cut.block_m, BLOCK_N=cut.block_n,
        BLOCK_K=cut.block_k, SPLIT=cut.split, EARLY=cut.early, STEPS=steps, AHEAD=LINES_AHEAD, **shape, **launch,
    )  # fmt: skip
    return out, ahead
