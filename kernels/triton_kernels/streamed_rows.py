"""The product of one, two or four rows with a weight matrix, and what stands around it: every weight goes through the registers once
and meets all rows there."""

import triton
import triton.language as tl

from kernels.triton_kernels.launch import let_next_start, wait_for_last

PIECE = 8  # neighbouring weights that a thread loads at once: 16 bytes of bf16


@triton.jit
def _weights(weight_ptr, piece, n, K: tl.constexpr):
    """Weights ``[pieces, 1, outputs, 8]`` as they are stored, of the rows ``n`` of a matrix ``[N, K]``; zeros behind column K."""
    at = n.to(tl.int64)[None, None, :, None] * K + piece[:, None, None, None] * 8 + tl.arange(0, 8)[None, None, None, :]
    return tl.load(weight_ptr + at, mask=piece[:, None, None, None] < K // 8, other=0.0, eviction_policy="evict_first")


@triton.jit
def streamed_rows_kernel(
    x_ptr, norm_ptr, weight_ptr, residual_ptr, out_ptr, rows, eps,
    N: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, PIECES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program for ``BLOCK_N`` of the ``N`` outputs of up to ``ROWS`` rows; x is contiguous, ``K`` a multiple of 8. ``GATED``: the
    matrix has 2N rows. Where ``rows`` are fewer the last is computed again and not stored."""
    let_next_start(DEPENDENT)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_row = tl.where(n < N, n, 0)  # loads need no mask then
    m = tl.arange(0, ROWS)
    m_row = tl.minimum(m, rows - 1)  # nor here
    out = tl.zeros((PIECES, ROWS, BLOCK_N), tl.float32)
    up = tl.zeros((PIECES, ROWS, BLOCK_N), tl.float32)
    squares = tl.zeros((PIECES, ROWS), tl.float32)
    for begin in tl.static_range(0, K // 8, PIECES):
        piece = begin + tl.arange(0, PIECES)
        weights = _weights(weight_ptr, piece, n_row, K)
        if GATED:
            up_weights = _weights(weight_ptr, piece, n_row + N, K)
        k = piece[:, None, None] * 8 + tl.arange(0, 8)[None, None, :]
        inside = piece[:, None, None] < K // 8
        if NORM:
            norm = tl.load(norm_ptr + k, mask=inside, other=0.0).to(tl.float32)
        if begin == 0:
            wait_for_last(DEPENDENT)
            if ADD:  # here, so that it comes with x and not after the sums
                residual = tl.load(residual_ptr + m_row[:, None] * N + n_row[None, :])
        x = tl.load(x_ptr + m_row[None, :, None] * K + k, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            squares += tl.sum(x * x, 2)
            x = x * norm
        out += tl.sum(weights.to(tl.float32) * x[:, :, None, :], 3)
        if GATED:
            up += tl.sum(up_weights.to(tl.float32) * x[:, :, None, :], 3)
    result = tl.sum(out, 0)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, 0) / K + eps)[:, None]
        result = result * scale
    if GATED:
        up_result = tl.sum(up, 0)
        if NORM:
            up_result = up_result * scale
        result = result * tl.sigmoid(result) * up_result
    if ADD:
        result += residual.to(tl.float32)
    tl.store(out_ptr + m[:, None] * N + n[None, :], result.to(out_ptr.dtype.element_ty), mask=(m < rows)[:, None] & (n < N)[None, :])
