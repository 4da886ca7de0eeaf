"""The product of up to 128 rows with a weight matrix, and what stands around it: weights stream through shared memory once.

Computed as weights x rows, transposed: 64 outputs are the tall side of a warp group's matrix instruction (wgmma), and 16 rows
are enough for its other side. The norm's products then lie in shared memory, where that instruction wants them. Better still, the product before has
made them (``NEXT``): then nothing stands between loads and that instruction.
"""

import triton
import triton.language as tl

from kernels.triton_kernels.launch import arrives_last, let_next_start, prefetch, wait_for_last


@triton.jit
def some_rows_kernel(
    x_ptr, norm_ptr, weight_ptr, residual_ptr, out_ptr, partial_ptr, counter_ptr, squares_ptr,
    next_norm_ptr, next_scaled_ptr, next_squares_ptr, rows, eps,
    N: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, SQUARES: tl.constexpr,
    NEXT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
    EARLY: tl.constexpr, STEPS: tl.constexpr, AHEAD: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program for ``BLOCK_N`` of the ``N`` outputs, ``EARLY`` and then ``STEPS`` blocks of ``K``, and ``BLOCK_M`` rows. x is contiguous.

    The first ``EARLY`` inputs' weights are loaded before the kernel before this one has ended. With ``SPLIT`` programs an output,
    each stores its part and the last to come sums them. ``GATED``: the matrix has 2N rows.
    ``AHEAD`` cache lines of every row of weights are asked for before the kernel before this one has ended.
    ``SQUARES``: x comes multiplied by the norm's weight, with sums of squares ``[SQUARES, rows]``, as ``NEXT`` leaves them.
    """
    NORMING: tl.constexpr = NORM and SQUARES == 0
    let_next_start(DEPENDENT)
    n_tile, part, m_tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = n_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    n_row = tl.where(n < N, n, 0).to(tl.int64)  # loads need no mask then
    m = m_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    SHARE: tl.constexpr = EARLY + STEPS * BLOCK_K
    EVEN: tl.constexpr = K == SPLIT * SHARE
    early_k = part * SHARE + tl.arange(0, EARLY if EARLY > 0 else 1)
    first_k = part * SHARE + EARLY
    if EARLY > 0:
        early = _weights(weight_ptr, n_row, early_k, K, EVEN)
        if GATED:
            early_up = _weights(weight_ptr, n_row + N, early_k, K, EVEN)
    if DEPENDENT and STEPS > 0:
        _prefetch(weight_ptr, n_row, first_k, K, AHEAD)
        if GATED:
            _prefetch(weight_ptr, n_row + N, first_k, K, AHEAD)
    next_norm = 0.0
    residual = 0.0
    if NEXT:  # here, as what follows too, so that it comes with the weights and not after the sums
        next_norm = tl.load(next_norm_ptr + n, mask=n < N, other=0.0)
    wait_for_last(DEPENDENT)
    if ADD:
        residual = tl.load(residual_ptr + m.to(tl.int64)[None, :] * N + n[:, None], mask=(n < N)[:, None] & (m < rows)[None, :], other=0.0)
    if SQUARES > 0:
        tile = tl.arange(0, triton.next_power_of_2(SQUARES))
        there = (tile < SQUARES)[:, None] & (m < rows)[None, :]
        given_squares = tl.load(squares_ptr + tile[:, None] * rows + m[None, :], mask=there, other=0.0)

    x_rows = x_ptr + m.to(tl.int64)[:, None] * K
    real = (m < rows)[:, None]
    out = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    if EARLY > 0:  # multiplied last, so that the other blocks are asked for as soon as can be
        early_x, early_wide = _inputs(x_rows, real, norm_ptr, early_k, K, EVEN, NORMING)
    for step in range(STEPS):
        k = first_k + step * BLOCK_K + tl.arange(0, BLOCK_K)
        x, wide = _inputs(x_rows, real, norm_ptr, k, K, EVEN, NORMING)
        if NORMING:
            squares += wide * wide
        weights = _weights(weight_ptr, n_row, k, K, EVEN)
        out = tl.dot(weights, tl.trans(x), out, input_precision="ieee")
        if GATED:
            weights = _weights(weight_ptr, n_row + N, k, K, EVEN)
            up = tl.dot(weights, tl.trans(x), up, input_precision="ieee")
    if EARLY > 0:
        out = tl.dot(early, tl.trans(early_x), out, input_precision="ieee")
        if GATED:
            up = tl.dot(early_up, tl.trans(early_x), up, input_precision="ieee")
    if SQUARES > 0:
        square = tl.sum(given_squares, 0)
    else:
        square = tl.sum(squares, 1)
        if NORMING and EARLY > 0:
            square += tl.sum(early_wide * early_wide, 1)

    if SPLIT == 1:
        _finish(
            out, up, square, residual, out_ptr, next_norm, next_scaled_ptr, next_squares_ptr, m, n, rows, eps,
            N, K, NORM, GATED, ADD, NEXT,
        )  # fmt: skip
    else:
        FLOATS: tl.constexpr = BLOCK_M * (BLOCK_N * (2 if GATED else 1) + 1)  # of one part: out, up, sums of squares
        tile = m_tile * tl.num_programs(0) + n_tile
        parts_ptr = partial_ptr + tile.to(tl.int64) * (SPLIT * FLOATS)
        at = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        up_at = BLOCK_M * BLOCK_N + at
        square_at = (FLOATS - BLOCK_M) + tl.arange(0, BLOCK_M)
        own_ptr = parts_ptr + part * FLOATS
        tl.store(own_ptr + at, out)
        if GATED:
            tl.store(own_ptr + up_at, up)
        if NORMING:
            tl.store(own_ptr + square_at, square)
        if arrives_last(counter_ptr + tile, SPLIT):
            out = _summed(parts_ptr + at, FLOATS, SPLIT)
            if GATED:
                up = _summed(parts_ptr + up_at, FLOATS, SPLIT)
            if NORMING:
                square = _summed(parts_ptr + square_at, FLOATS, SPLIT)
            _finish(
                out, up, square, residual, out_ptr, next_norm, next_scaled_ptr, next_squares_ptr, m, n, rows, eps,
                N, K, NORM, GATED, ADD, NEXT,
            )  # fmt: skip


@triton.jit
def _prefetch(weight_ptr, n, first_k, K: tl.constexpr, LINES: tl.constexpr):
    """Ask for the next ``LINES`` cache lines of rows ``n`` of a matrix ``[N, K]``, to lie in L2 when they are loaded."""
    LINE: tl.constexpr = 1024 // weight_ptr.dtype.element_ty.primitive_bitwidth
    k = tl.minimum(first_k + tl.arange(0, LINES) * LINE, K - 1)
    prefetch(weight_ptr + n[:, None] * K + k[None, :])


@triton.jit
def _weights(weight_ptr, n, k, K: tl.constexpr, EVEN: tl.constexpr):
    """Columns ``k`` of rows ``n`` of a matrix ``[N, K]``, each for once."""
    at = n[:, None] * K + k[None, :]
    if EVEN:
        weights = tl.load(weight_ptr + at, eviction_policy="evict_first")
    else:
        weights = tl.load(weight_ptr + at, mask=k[None, :] < K, other=0.0, eviction_policy="evict_first")
    return weights


@triton.jit
def _inputs(x_rows, real, norm_ptr, k, K: tl.constexpr, EVEN: tl.constexpr, NORMING: tl.constexpr):
    """Columns ``k`` of x; with ``NORMING`` times the norm's weight, and before that in fp32."""
    x = tl.load(x_rows + k[None, :], mask=real if EVEN else real & (k[None, :] < K), other=0.0)
    wide = x
    if NORMING:
        wide = x.to(tl.float32)
        norm = tl.load(norm_ptr + k) if EVEN else tl.load(norm_ptr + k, mask=k < K, other=0.0)
        x = (wide * norm.to(tl.float32)[None, :]).to(x.dtype)
    return x, wide


@triton.jit
def _summed(parts, FLOATS: tl.constexpr, SPLIT: tl.constexpr):
    """The sum over all parts in their order, whoever comes last."""
    total = tl.load(parts, cache_modifier=".cg")
    for part in tl.static_range(1, SPLIT):
        total += tl.load(parts + part * FLOATS, cache_modifier=".cg")
    return total


@triton.jit
def _finish(
    out, up, square, residual, out_ptr, next_norm, next_scaled_ptr, next_squares_ptr, m, n, rows, eps,
    N: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, NEXT: tl.constexpr,
):  # fmt: skip
    """Norm, gate or residual of whole sums ``[outputs, rows]``, and the store; with ``NEXT`` also what the next norm needs."""
    real = m < rows
    if NORM:
        scale = tl.rsqrt(square / K + eps)[None, :]
        out = out * scale
        up = up * scale
    if GATED:
        out = out * tl.sigmoid(out) * up
    inside = (n < N)[:, None] & real[None, :]
    at = m.to(tl.int64)[None, :] * N + n[:, None]
    if ADD:
        out += residual.to(tl.float32)
    narrow = out.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, narrow, mask=inside)
    if NEXT:
        wide = tl.where(inside, narrow.to(tl.float32), 0.0)
        tl.store(next_scaled_ptr + at, (wide * next_norm.to(tl.float32)[:, None]).to(out_ptr.dtype.element_ty), mask=inside)
        tl.store(next_squares_ptr + tl.program_id(0) * rows + m, tl.sum(wide * wide, 0), mask=real)
