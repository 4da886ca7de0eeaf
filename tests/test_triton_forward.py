"""Products of few rows with what stands around them, and rotation into the cache, by Triton's kernels are the references'."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import DEVICE
from torch import nn

from kernels import layers
from kernels.triton_kernels import context, few_rows, norms, rope, rotate
from kernels.triton_kernels.tiles import MOST_ROWS, Tile, tile

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def norm_of(width: int) -> nn.RMSNorm:
    norm = nn.RMSNorm(width, 1e-5, device=DEVICE)
    norm.weight.data = torch.rand(width, device=DEVICE) + 0.5
    return norm.requires_grad_(False)


def close(found, wanted, dtype):
    assert found.shape == wanted.shape and found.dtype == dtype
    assert float((found.float() - wanted.float()).norm() / wanted.float().norm()) < TOLERANCE[dtype]


@torch.no_grad()
def compare(rows, inputs, outputs, dtype, cut=None):
    """All three products against plain torch in fp32."""
    torch.manual_seed(rows + inputs + outputs)
    x, residual = torch.randn(1, rows, inputs, device=DEVICE), torch.randn(1, rows, outputs, device=DEVICE)
    norm, weight = norm_of(inputs), torch.randn(2 * outputs, inputs, device=DEVICE) * inputs**-0.5
    single = weight[:outputs].contiguous()
    narrow = [each.to(dtype) for each in (x, residual, norm.weight, weight, single)]
    product = lambda **options: few_rows.product(narrow[0], cut=cut, **options)[0]  # noqa: E731
    wide = [each.float() for each in narrow]
    normed = torch.nn.functional.rms_norm(wide[0], (inputs,), wide[2], norm.eps)
    close(product(weight=narrow[4], norm=narrow[2], eps=norm.eps), normed @ wide[4].T, dtype)
    close(product(weight=narrow[4], residual=narrow[1]), wide[1] + wide[0] @ wide[4].T, dtype)
    close(product(weight=narrow[3], norm=narrow[2], eps=norm.eps, gated=True), layers.swiglu(normed @ wide[3].T), dtype)


@torch.no_grad()
def compare_handed_on(rows, inputs, outputs, dtype, cut=None):
    """A product that leaves what the next norm needs, and one that takes it, against plain torch in fp32."""
    torch.manual_seed(rows + inputs + outputs)
    x, residual = torch.randn(1, rows, inputs, device=DEVICE).to(dtype), torch.randn(1, rows, outputs, device=DEVICE).to(dtype)
    first = (torch.randn(outputs, inputs, device=DEVICE) * inputs**-0.5).to(dtype)
    second = (torch.randn(2 * inputs, outputs, device=DEVICE) * outputs**-0.5).to(dtype)
    norm = norm_of(outputs).to(dtype)
    hidden, scaled = few_rows.product(x, first, residual=residual, following=norm.weight, cut=cut)
    close(hidden, residual.float() + x.float() @ first.float().T, dtype)
    close(scaled.values, hidden.float() * norm.weight.float(), dtype)
    close(scaled.squares.sum(dim=0), hidden[0].float().square().sum(dim=1), torch.float32)
    normed = torch.nn.functional.rms_norm(hidden.float(), (outputs,), norm.weight.float(), norm.eps) @ second.float().T
    # What is not the scaled is not read.
    nothing = torch.full_like(hidden, torch.nan)
    options = {"norm": norm.weight, "eps": norm.eps, "scaled": scaled, "cut": cut}
    close(few_rows.product(nothing, second, **options)[0], normed, dtype)
    close(few_rows.product(nothing, second, gated=True, **options)[0], layers.swiglu(normed), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows, cut", [(5, None), (37, None), (20, Tile(16, 16, 32, split=3)), (33, Tile(32, 64, 64, split=2)), (20, Tile(16, 32, 32, split=2, early=64))])
def test_what_a_product_hands_to_the_next_norm(rows, dtype, cut):
    compare_handed_on(rows, 72, 200, dtype, cut)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 70), st.sampled_from([16, 48, 72]), st.integers(1, 70), st.sampled_from(list(TOLERANCE)))
def test_products_of_all_sizes(rows, inputs, outputs, dtype):
    compare(rows, inputs, outputs, dtype)


CUTS = [
    Tile(1, 4, 64, stages=1), Tile(2, 8, 64, stages=1), Tile(4, 2, 256, stages=1), Tile(4, 1, 64, stages=1),
    Tile(16, 64, 32), Tile(16, 16, 32, split=3), Tile(32, 128, 64, split=2),
    Tile(16, 32, 32, early=128), Tile(16, 32, 64, split=2, early=32), Tile(32, 64, 32, early=256),
]  # fmt: skip


@pytest.mark.parametrize("cut", CUTS)
def test_every_way_to_cut_a_product(cut):
    compare(cut.block_m if cut.streams else cut.block_m + 3, 200, 42, torch.bfloat16, cut)


def test_a_row_in_fp32_is_the_same_in_any_company():
    torch.manual_seed(0)
    x, weight, norm = torch.randn(1, 33, 72, device=DEVICE), torch.randn(40, 72, device=DEVICE), torch.rand(72, device=DEVICE)
    together = few_rows.norm_linear(x, norm, 1e-5, weight)
    for row in (0, 15, 16, 32):
        assert torch.equal(few_rows.norm_linear(x[:, row : row + 1], norm, 1e-5, weight)[0, 0], together[0, row])
    for rows in (2, 3, 4):
        assert torch.equal(few_rows.norm_linear(x[:, :rows].contiguous(), norm, 1e-5, weight), together[:, :rows])


def test_counters_are_zero_again():
    from kernels.triton_kernels.launch import counters

    compare(17, 200, 40, torch.bfloat16, Tile(16, 16, 32, split=3))
    assert not counters(torch.empty(0, device=DEVICE).device).any()


def test_what_suits_the_kernels():
    weight = torch.empty(8, 16)
    assert few_rows.suits(torch.empty(2, 64, 16), weight) and not few_rows.suits(torch.empty(1, MOST_ROWS + 1, 16), weight)
    assert not few_rows.suits(torch.empty(1, 1, 16), weight.bfloat16()) and not few_rows.suits(torch.empty(1, 1, 16).half(), weight.half())
    assert [tile(rows, 576, 576, False, torch.bfloat16).block_m for rows in (1, 2, 3, 5)] == [1, 2, 4, 16]
    assert all(tile(rows, 64, 64, False, torch.float32) == Tile(16, 32, 32, stages=2) for rows in (1, 2, 3, 4, 5))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows, half", [(1, 32), (7, 12)])
def test_rope_tables(rows, half, dtype):
    positions = torch.randint(0, 40_000, (2, rows), device=DEVICE)
    frequencies = 1e6 ** -torch.linspace(0, 1, half, device=DEVICE)
    with torch.enable_grad():  # where something learns, the reference
        wanted = layers.rope_tables(positions, frequencies, dtype)
    for found, each in zip(rope.rope_tables(positions, frequencies, dtype), wanted, strict=True):
        assert found.shape == each.shape and found.is_contiguous()
        close(found, each, dtype)


@pytest.mark.parametrize("heads, kv_heads, head_dim, rows", [(4, 2, 16, 5), (9, 3, 64, 1), (2, 1, 128, 9), (3, 3, 24, 3)])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("normed", [False, True])
@torch.no_grad()
def test_rotation_into_the_cache(heads, kv_heads, head_dim, rows, dtype, normed):
    torch.manual_seed(rows)
    batch, capacity, lengths = 2, 20, torch.tensor([3, 11], device=DEVICE)
    qkv = torch.randn(batch, rows, (heads + 2 * kv_heads) * head_dim, device=DEVICE).to(dtype)
    q_norm, k_norm = (norm_of(head_dim).to(dtype), norm_of(head_dim).to(dtype)) if normed else (None, None)
    positions = lengths[:, None] + torch.randint(0, 5, (batch, rows), device=DEVICE)
    rope = layers.rope_tables(positions, 500.0 ** -torch.linspace(0, 1, head_dim // 2, device=DEVICE), dtype)
    caches = torch.randn(2, batch, kv_heads, capacity, head_dim, device=DEVICE).to(dtype)
    wanted_queries, *new = layers.rotate(qkv, rope, heads, kv_heads, q_norm, k_norm)
    wanted = caches.clone()
    for request, length in enumerate(lengths.tolist()):
        for which in range(2):
            wanted[which, request, :, length : length + rows] = new[which][request]
    weights = (q_norm.weight, k_norm.weight) if normed else (None, None)
    found = rotate.rotate_into(qkv, *rope, heads, *weights, 1e-5, *caches, lengths)
    close(found, wanted_queries, dtype)
    close(caches, wanted, dtype)
    untouched = torch.ones(capacity, dtype=torch.bool)
    untouched[3 : 3 + rows] = False
    assert torch.equal(caches[:, 0][:, :, untouched], wanted[:, 0][:, :, untouched])


def test_rows_behind_the_capacity_are_not_written():
    cache = torch.zeros(2, 1, 1, 8, 16, device=DEVICE)
    qkv, tables = torch.ones(1, 4, 48, device=DEVICE), torch.ones(1, 1, 4, 16, device=DEVICE)
    rotate.rotate_into(qkv, tables, tables, 1, None, None, 0.0, *cache, torch.tensor([6], device=DEVICE))
    assert cache[0, 0, 0].abs().sum(-1).nonzero().flatten().tolist() == [6, 7]


@pytest.mark.parametrize("layers_, kv_heads, head_dim, rows", [(2, 2, 16, 5), (1, 3, 64, 1), (3, 1, 24, 3)])
@pytest.mark.parametrize("dtype", TOLERANCE)
@torch.no_grad()
def test_a_drafters_context_into_the_cache(layers_, kv_heads, head_dim, rows, dtype):
    torch.manual_seed(rows)
    batch, capacity, lengths = 2, 20, torch.tensor([3, 11])
    both = torch.randn(batch, rows, layers_ * 2 * kv_heads * head_dim).to(dtype)
    frequencies, norms = layers.rope_frequencies(500.0, head_dim, both.device), (torch.rand(layers_, head_dim) + 0.5).to(dtype)
    wanted = torch.randn(layers_, 2, batch, kv_heads, capacity, head_dim).to(dtype)
    found = wanted.clone().to(DEVICE)
    layers.write_context(both, frequencies, norms, 1e-5, wanted, lengths)
    context.write_context(*(each.to(DEVICE) for each in (both, frequencies, norms)), 1e-5, found, lengths.to(DEVICE))
    found = found.cpu()
    close(found[:, 0], wanted[:, 0], dtype)
    assert torch.equal(found[:, 1], wanted[:, 1])
    for request, length in enumerate(lengths.tolist()):
        untouched = torch.ones(capacity, dtype=torch.bool)
        untouched[length : length + rows] = False
        assert torch.equal(found[:, :, request, :, untouched], wanted[:, :, request, :, untouched])


def test_a_context_behind_the_capacity_is_not_written():
    cache = torch.zeros(2, 2, 2, 1, 8, 16, device=DEVICE)
    context.write_context(
        torch.ones(2, 4, 128, device=DEVICE), torch.ones(8, device=DEVICE), torch.ones(2, 16, device=DEVICE), 1e-5, cache,
        torch.tensor([6, 8], device=DEVICE),
    )  # fmt: skip
    assert cache.abs().sum(dim=(0, 1, 3, 5)).nonzero().tolist() == [[0, 6], [0, 7]]


@pytest.mark.parametrize("width", [16, 576])
@pytest.mark.parametrize("dtype", TOLERANCE)
@torch.no_grad()
def test_two_norms_side_by_side(width, dtype):
    torch.manual_seed(width)
    own = norm_of(width).to(dtype), norm_of(width).to(dtype)
    own[1].eps = 1.0
    both = torch.randn(2, 2, 3, width + 1, device=DEVICE).to(dtype)[..., :width]
    found = norms.norms_side_by_side(*both, (own[0].weight, own[1].weight), (own[0].eps, own[1].eps))
    close(found, torch.cat([own[0](both[0]), own[1](both[1])], dim=-1), dtype)
    torch.testing.assert_close(found[..., width:].float(), own[1].float()(both[1].float()), rtol=2e-2, atol=1e-2)
