"""Attention that rotates what it reads is rotation into the cache and then attention, whatever the trees, lengths and windows."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import DEVICE, INTERPRETED
from test_triton_attention import random_parents

from kernels import Rows, ancestor_bits, attention, device, layers, rotate_into, rotated_attention, unpack_bits
from kernels.triton_kernels import rotated
from kernels.triton_kernels import tree_attention as kernels

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def rotated_always(monkeypatch):
    monkeypatch.setattr(rotated, "MOST_ROTATED", 128)


def made(batch, heads, kv_heads, head_dim, rows, capacity, seed, dtype, normed, fits=True):
    """Arguments of ``rotated_attention`` but for the rows, on the CPU, and lengths of which the first fills the cache."""
    torch.manual_seed(seed)
    lengths = torch.randint(0, capacity - rows + 1, (batch,))
    lengths[0] = capacity - rows if fits else capacity - 2
    positions = lengths[:, None] + torch.randint(0, 5, (batch, rows))
    rope = layers.rope_tables(positions, 500.0 ** -torch.linspace(0, 1, head_dim // 2), dtype)
    norms = [None, None]
    if normed:
        norms = [torch.nn.RMSNorm(head_dim, 1e-5, dtype=dtype).requires_grad_(False) for _ in range(2)]
        for norm in norms:
            norm.weight.copy_(torch.rand(head_dim) + 0.5)
    qkv = torch.randn(batch, rows, (heads + 2 * kv_heads) * head_dim).to(dtype)
    keys, values = torch.randn(2, batch, kv_heads, capacity, head_dim).to(dtype)
    return (qkv, rope, heads, *norms, keys, values), lengths


def on_device(arguments):
    qkv, rope, heads, q_norm, k_norm, keys, values = arguments
    norms = [norm if norm is None else deepcopy(norm).to(DEVICE) for norm in (q_norm, k_norm)]
    return qkv.to(DEVICE), tuple(each.to(DEVICE) for each in rope), heads, *norms, keys.clone().to(DEVICE), values.clone().to(DEVICE)


def by_kernel(arguments, rows):
    """``rotated_attention`` on a GPU's road, which must be the one kernel."""
    device.interpreted = INTERPRETED
    try:
        return rotated_attention(*arguments, rows)
    finally:
        device.interpreted = False


def close(found, wanted, dtype):
    assert found.dtype == dtype and found.shape == wanted.shape
    assert float((found.float().cpu() - wanted.float()).norm() / wanted.float().norm()) < TOLERANCE[dtype]


@torch.no_grad()
def compare(batch, heads, kv_heads, head_dim, rows, capacity, seed, dtype=torch.float32, tree=True, window=None, normed=False):
    arguments, lengths = made(batch, heads, kv_heads, head_dim, rows, capacity, seed, dtype, normed)
    bits = ancestor_bits(random_parents(batch, rows, seed)) if tree else None
    there = on_device(arguments)
    found = by_kernel(there, Rows(lengths.to(DEVICE), None if bits is None else bits.to(DEVICE), window))
    keys, values = arguments[-2:]
    queries = rotate_into(*arguments, lengths)
    mask = unpack_bits(bits, rows) if tree else None
    close(found, attention(queries.float(), keys.float(), values.float(), Rows(lengths, mask, window)).to(dtype), dtype)
    close(there[-2], keys, dtype)
    assert torch.equal(there[-1].cpu(), values), "values are copied as they are"
    for request, length in enumerate(lengths.tolist()):
        untouched = torch.ones(capacity, dtype=torch.bool)
        untouched[length : length + rows] = False
        assert torch.equal(there[-2][request].cpu()[:, untouched], keys[request][:, untouched])


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_trees_of_every_request(data):
    kv_heads, group = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 3, 4]))
    rows = data.draw(st.sampled_from([1, 2, 17, 40]))
    compare(
        batch=data.draw(st.integers(1, 2)), heads=kv_heads * group, kv_heads=kv_heads, head_dim=data.draw(st.sampled_from([16, 24, 64])),
        rows=rows, capacity=rows + data.draw(st.integers(0, 150)), seed=data.draw(st.integers(0, 2**31)),
        tree=data.draw(st.booleans()), window=data.draw(st.sampled_from([None, 1, 5, 60])), normed=data.draw(st.booleans()),
        dtype=data.draw(st.sampled_from(list(TOLERANCE))),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("head_dim, group", [(64, 3), (128, 4)])
def test_the_head_sizes_of_real_models(dtype, normed, head_dim, group):
    compare(2, 2 * group, 2, head_dim, 9, 200, seed=1, dtype=dtype, normed=normed)
    compare(1, 2 * group, 2, head_dim, 1, 200, seed=2, dtype=dtype, tree=False, normed=normed)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [65, 130])
def test_rows_of_several_words_and_tiles(rows, dtype):
    compare(2, 2, 1, 16, rows, rows + 70, seed=rows, dtype=dtype, normed=True)


@pytest.mark.parametrize("parts", [1, 2, 7, 64])
def test_any_number_of_parts_also_empty_ones(parts, monkeypatch):
    monkeypatch.setattr(kernels, "programs_at_once", lambda device: 2 * parts)
    for rows in (1, 5, 17):
        compare(2, 3, 1, 16, rows, rows + 190, seed=parts)
        compare(2, 3, 1, 16, rows, rows + 190, seed=parts, dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", TOLERANCE)
@torch.no_grad()
def test_rows_behind_the_capacity_are_seen_but_not_written(dtype):
    """Those of the first request would fall on the second head's."""
    arguments, lengths = made(1, 4, 2, 16, 5, 40, 0, dtype, True, fits=False)
    there = on_device(arguments)
    found = by_kernel(there, Rows(lengths.to(DEVICE)))
    *rest, keys, values = arguments
    room = [torch.cat([each, each[:, :, :5]], dim=2) for each in (keys, values)]
    queries = rotate_into(*rest, *room, lengths)
    close(found, attention(queries.float(), *(each.float() for each in room), Rows(lengths)).to(dtype), dtype)
    close(there[-2], room[0][:, :, :40], dtype)
    assert torch.equal(there[-1].cpu(), room[1][:, :, :40])


@torch.no_grad()
def test_what_the_cache_holds_behind_the_lengths_is_not_read():
    arguments, lengths = made(2, 4, 2, 16, 5, 60, 0, torch.float32, False)
    first, second = on_device(arguments), on_device(arguments)
    for request, length in enumerate(lengths.tolist()):
        second[-2][request, :, length:], second[-1][request, :, length:] = torch.nan, torch.nan
    rows = Rows(lengths.to(DEVICE))
    assert torch.equal(by_kernel(first, rows), by_kernel(second, rows))


@torch.no_grad()
def test_a_row_in_fp32_is_the_same_in_any_company(monkeypatch):
    """A chain's rows, and the first of them alone: keys bit for bit, attention to the order of its sums; parts are as many for both."""
    monkeypatch.setattr(kernels, "_MOST_PARTS", 1)
    arguments, lengths = made(1, 4, 2, 16, 33, 120, 0, torch.float32, True)
    together, alone = on_device(arguments), on_device(arguments)
    bits = ancestor_bits(torch.arange(-1, 32)[None]).to(DEVICE)
    found = by_kernel(together, Rows(lengths.to(DEVICE), bits))
    qkv, (cos, sin), *rest = alone
    for row in range(3):
        one = (qkv[:, row : row + 1], (cos[:, :, row : row + 1], sin[:, :, row : row + 1]), *rest)
        again = by_kernel(one, Rows((lengths + row).to(DEVICE)))
        torch.testing.assert_close(again[:, 0], found[:, row], rtol=1e-5, atol=1e-6)
    assert torch.equal(alone[-2][:, :, : lengths[0] + 3], together[-2][:, :, : lengths[0] + 3]), "keys are written the same"


@pytest.mark.parametrize("most, kernel", [(0, "rotate_into"), (32, "rotated_attention"), (128, "rotated_attention")])
@torch.no_grad()
def test_which_road_a_pass_takes(most, kernel, monkeypatch):
    """In fp32 it depends on the constant alone; in bf16 many rows take the two kernels."""
    monkeypatch.setattr(rotated, "MOST_ROTATED", most)
    keys = torch.empty(1, 2, 100, 16)
    assert {rotated.rotates(rows, 8, keys) for rows in (1, 8, 9, 70)} == {kernel == "rotated_attention"}
    assert [rotated.rotates(rows, 8, keys.bfloat16()) for rows in (1, 8, 9, 70)] == [most >= 32, most >= 32, most >= 64, most >= 128]
    arguments, lengths = made(1, 4, 2, 16, 3, 40, 0, torch.float32, True)
    there = on_device(arguments)
    found = by_kernel(there, Rows(lengths.to(DEVICE)))
    close(found, rotated_attention(*arguments, Rows(lengths)), torch.float32)
    close(there[-2], arguments[-2], torch.float32)
