"""The product of one row with a weight matrix, and what stands around it: every weight goes through the registers once."""

import triton
import triton.language as tl

from kernels.triton_kernels.launch import let_next_start, wait_for_last

PIECE = 8  # neighbouring weights that a thread loads at once: 16 bytes of bf16


@triton.jit
def _weights(weight_ptr, piece, n, K: tl.constexpr):
    """Weights ``[pieces, outputs, 8]`` as fp32 of the rows ``n`` of a matrix ``[N, K]``; zeros behind column K."""
    at = n.to(tl.int64)[None, :, None] * K + piece[:, None, None] * 8 + tl.arange(0, 8)[None, None, :]
    return tl.load(weight_ptr + at, mask=piece[:, None, None] < K // 8, other=0.0, eviction_policy="evict_first")


@triton.jit
def one_row_kernel(
    x_ptr, norm_ptr, weight_ptr, residual_ptr, out_ptr, eps,
    N: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    BLOCK_N: tl.constexpr, PIECES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program for ``BLOCK_N`` of the ``N`` outputs; x is contiguous, ``K`` a multiple of 8. ``GATED``: the matrix has 2N rows."""
    let_next_start(DEPENDENT)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.where(n < N, n, 0)  # loads need no mask then
    out = tl.zeros((PIECES, BLOCK_N), tl.float32)
    up = tl.zeros((PIECES, BLOCK_N), tl.float32)
    squares = tl.zeros((PIECES,), tl.float32)
    for begin in tl.static_range(0, K // 8, PIECES):
        piece = begin + tl.arange(0, PIECES)
        weights = _weights(weight_ptr, piece, row, K)
        if GATED:
            up_weights = _weights(weight_ptr, piece, row + N, K)
        k = piece[:, None] * 8 + tl.arange(0, 8)[None, :]
        if NORM:
            norm = tl.load(norm_ptr + k, mask=piece[:, None] < K // 8, other=0.0).to(tl.float32)
        if begin == 0:
            wait_for_last(DEPENDENT)
            if ADD:  # here, so that it comes with x and not after the sums
                residual = tl.load(residual_ptr + row)
        x = tl.load(x_ptr + k, mask=piece[:, None] < K // 8, other=0.0).to(tl.float32)
        if NORM:
            squares += tl.sum(x * x, 1)
            x = x * norm
        out += tl.sum(weights.to(tl.float32) * x[:, None, :], 2)
        if GATED:
            up += tl.sum(up_weights.to(tl.float32) * x[:, None, :], 2)
    result = tl.sum(out, 0)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, 0) / K + eps)
        result = result * scale
    if GATED:
        up_result = tl.sum(up, 0)
        if NORM:
            up_result = up_result * scale
        result = result * tl.sigmoid(result) * up_result
    if ADD:
        result += residual.to(tl.float32)
    tl.store(out_ptr + n, result.to(out_ptr.dtype.element_ty), mask=n < N)
