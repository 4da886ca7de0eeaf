"""Products of up to four rows whose weights go through registers: right, alone and beside products that use matrix instructions."""

import ctypes
import mmap

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import DEVICE
from test_triton_forward import close, compare, norm_of

from kernels import layers
from kernels.triton_kernels import few_rows
from kernels.triton_kernels.streamed_rows import streamed_rows_kernel
from kernels.triton_kernels.tiles import Tile, tile

STREAMED, BY_INSTRUCTION = Tile(4, 4, 64, stages=1), Tile(16, 16, 32, split=2)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_up_to_four_rows_in_bf16_hand_nothing_on(rows):
    x, weight = torch.randn(1, rows, 64, device=DEVICE).bfloat16(), torch.randn(64, 64, device=DEVICE).bfloat16()
    assert (few_rows.linear_add(x, weight, x, weight[0])[1] is None) == (rows < 5)


@pytest.mark.parametrize("cuts", [(STREAMED, BY_INSTRUCTION), (BY_INSTRUCTION, STREAMED), (STREAMED, STREAMED), (BY_INSTRUCTION, BY_INSTRUCTION)])
@pytest.mark.parametrize("rows", [3, 4])
@torch.no_grad()
def test_what_is_handed_on_or_not_between_both_kinds_of_product(rows, cuts):
    torch.manual_seed(rows)
    x, residual = torch.randn(2, 1, rows, 64, device=DEVICE).bfloat16()
    first, second = (torch.randn(3, 64, 64, device=DEVICE) / 8).bfloat16().split([1, 2])
    second, norm = second.flatten(0, 1), norm_of(64).bfloat16()
    hidden, scaled = few_rows.product(x, first[0], residual=residual, following=norm.weight, cut=cuts[0])
    assert (scaled is None) == cuts[0].streams
    close(hidden, residual.float() + x.float() @ first[0].float().T, torch.bfloat16)
    normed = torch.nn.functional.rms_norm(hidden.float(), (64,), norm.weight.float(), norm.eps) @ second.float().T
    options = {"norm": norm.weight, "eps": norm.eps, "scaled": scaled, "cut": cuts[1]}
    close(few_rows.product(hidden, second, **options)[0], normed, torch.bfloat16)
    close(few_rows.product(hidden, second, gated=True, **options)[0], layers.swiglu(normed), torch.bfloat16)


def test_streamed_rows_read_x_and_not_what_was_handed_on():
    x, weight = torch.randn(1, 4, 64, device=DEVICE).bfloat16(), torch.randn(64, 64, device=DEVICE).bfloat16()
    nothing = few_rows.Scaled(torch.full_like(x, torch.nan), torch.full((1, 4), torch.nan, device=DEVICE))
    alone = few_rows.norm_linear(x, weight[0], 1e-5, weight)
    assert alone.isfinite().all() and torch.equal(few_rows.norm_linear(x, weight[0], 1e-5, weight, nothing), alone)


def test_nothing_is_written_behind_the_rows_that_there_are():
    x, weight = torch.randn(3, 64, device=DEVICE).bfloat16(), torch.randn(6, 64, device=DEVICE).bfloat16()
    out = torch.full((4, 6), 7.0, dtype=torch.bfloat16, device=DEVICE)
    shape = {"N": 6, "K": 64, "NORM": False, "GATED": False, "ADD": False, "BLOCK_N": 4, "PIECES": 4}
    streamed_rows_kernel[(2,)](x, None, weight, None, out, 3, 0.0, ROWS=4, DEPENDENT=False, **shape)
    close(out[:3], x.float() @ weight.float().T, torch.bfloat16)
    assert (out[3] == 7).all()


def test_the_norm_of_rows_near_zero_has_its_epsilon():
    torch.manual_seed(0)
    x, weight = torch.randn(3, 64, device=DEVICE).bfloat16() * 1e-3, torch.randn(8, 64, device=DEVICE).bfloat16()
    norm = norm_of(64).bfloat16()
    normed = torch.nn.functional.rms_norm(x.float(), (64,), norm.weight.float(), 1e-5)
    found = few_rows.product(x, weight, norm=norm.weight, eps=1e-5, cut=STREAMED)[0]
    close(found, normed @ weight.float().T, torch.bfloat16)


@pytest.fixture
def guarded():
    """``guarded(tensor)``: a copy whose last number is the last before memory that may not be read."""
    libc, held = ctypes.CDLL(None), []

    def copy(tensor):
        size = tensor.numel() * tensor.element_size()
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert libc.mprotect(ctypes.c_void_p(start + pages), mmap.PAGESIZE, 0) == 0
        held.append(memory)
        return torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=pages - size).view(tensor.shape).copy_(tensor)

    return copy


@pytest.mark.skipif(DEVICE != "cpu", reason="guards memory of the host")
@pytest.mark.parametrize("gated", [False, True])
def test_nothing_is_read_behind_rows_and_weights(guarded, gated):
    """Three rows where four are computed, five outputs where a program has four; a fault would end the process."""
    x, weight = torch.randn(3, 64).bfloat16(), torch.randn(10 if gated else 5, 64).bfloat16()
    wanted = few_rows.product(x, weight, gated=gated, cut=STREAMED)[0]
    assert torch.equal(few_rows.product(guarded(x), guarded(weight), gated=gated, cut=STREAMED)[0], wanted)


def test_more_rows_than_can_be_streamed_are_refused():
    x, weight = torch.randn(1, 3, 64, device=DEVICE).bfloat16(), torch.randn(8, 64, device=DEVICE).bfloat16()
    with pytest.raises(ValueError, match="3 rows"):
        few_rows.product(x, weight, cut=Tile(2, 4, 64, stages=1))


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 4), st.sampled_from([8, 64, 200]), st.integers(1, 30))
def test_up_to_four_rows_of_all_sizes(rows, inputs, outputs):
    compare(rows, inputs, outputs, torch.bfloat16)
    assert tile(rows, outputs, inputs, False, torch.bfloat16).streams
