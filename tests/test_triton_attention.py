"""Attention over a cache by Triton's kernels is softmax over what each row sees, whatever the trees, lengths and windows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import DEVICE

from kernels import Rows, ancestor_bits, attention, unpack_bits
from kernels.triton_kernels import tree_attention as kernels
from kernels.triton_kernels.tree_attention import tree_attention

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def random_parents(batch: int, rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    parents = (torch.rand(batch, rows, generator=generator) * torch.arange(rows)).long()
    parents[:, 0] = -1
    return parents


def compare(batch, heads, kv_heads, head_dim, rows, capacity, seed, dtype=torch.float32, tree=True, window=None):
    torch.manual_seed(seed)
    lengths = torch.randint(0, capacity - rows + 1, (batch,))
    lengths[0] = capacity - rows
    queries = torch.randn(batch, rows, heads, head_dim, device=DEVICE).to(dtype).transpose(1, 2)  # strided, as from a product
    keys, values = torch.randn(2, batch, kv_heads, capacity, head_dim, device=DEVICE).to(dtype)
    bits = ancestor_bits(random_parents(batch, rows, seed)) if tree else None
    mask = unpack_bits(bits, rows) if tree else None
    found = tree_attention(queries, keys, values, lengths.to(DEVICE), None if bits is None else bits.to(DEVICE), window)
    wide = (each.float().cpu() for each in (queries, keys, values))
    wanted = attention(*wide, Rows(lengths, mask, window))
    assert found.dtype == dtype and found.shape == wanted.shape
    assert float((found.float().cpu() - wanted).norm() / wanted.norm()) < TOLERANCE[dtype]


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_trees_of_every_request(data):
    kv_heads, group = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 3, 4]))
    rows = data.draw(st.sampled_from([1, 2, 17, 40]))
    window = data.draw(st.sampled_from([None, 1, 5, 60]))
    compare(
        batch=data.draw(st.integers(1, 2)), heads=kv_heads * group, kv_heads=kv_heads, head_dim=data.draw(st.sampled_from([16, 24, 64])),
        rows=rows, capacity=rows + data.draw(st.integers(0, 150)), seed=data.draw(st.integers(0, 2**31)),
        tree=data.draw(st.booleans()), window=window,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim, group", [(64, 3), (128, 4)])
def test_the_head_sizes_of_real_models(dtype, head_dim, group):
    compare(2, 2 * group, 2, head_dim, 9, 200, seed=1, dtype=dtype)
    compare(1, 2 * group, 2, head_dim, 1, 200, seed=2, dtype=dtype, tree=False)


@pytest.mark.parametrize("rows", [65, 130])
def test_rows_of_several_words(rows):
    compare(2, 2, 1, 16, rows, rows + 70, seed=rows)


@pytest.mark.parametrize("parts", [1, 2, 7, 64])
def test_any_number_of_parts_also_empty_ones(parts, monkeypatch):
    """Parts of a long and of an empty context: those without a block leave nothing behind."""
    monkeypatch.setattr(kernels, "programs_at_once", lambda device: 2 * parts)
    for rows in (1, 5, 17):
        compare(2, 3, 1, 16, rows, rows + 190, seed=parts)


def test_what_lies_behind_the_rows_is_never_seen():
    torch.manual_seed(0)
    queries, (keys, values) = torch.randn(1, 2, 3, 16, device=DEVICE), torch.randn(2, 1, 1, 100, 16, device=DEVICE)
    lengths = torch.tensor([40], device=DEVICE)
    before = tree_attention(queries, keys, values, lengths, None)
    keys[:, :, 43:], values[:, :, 43:] = 1e4, 1e4
    assert torch.equal(tree_attention(queries, keys, values, lengths, None), before)
