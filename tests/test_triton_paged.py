"""Over caches in pages Triton's kernels attend and commit as the references do, whatever the tables, layouts and trees."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import DEVICE

from kernels import PagedCaches, PagedRows, ancestor_bits, device, emitted, paged_attention, row_mask, walk
from kernels.triton_kernels import commit, tree_attention
from kernels.triton_kernels import walk as walk_kernels
from kernels.triton_kernels.paged import paged_attention as kernel

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
LAYOUTS = {
    "row by row": lambda pages, page, heads, dim: torch.randn(2, pages, page, heads, dim).unbind(0),
    "head by head": lambda pages, page, heads, dim: torch.randn(pages, heads, page, 2 * dim).transpose(1, 2).split(dim, dim=-1),
}


def random_parents(counts: list[int]) -> torch.Tensor:
    """Trees of ``counts`` rows; behind its own a request's rows belong to no tree."""
    parents = (torch.rand(len(counts), max(1, *counts)) * torch.arange(max(1, *counts))).long()
    parents[:, 0] = -1
    for own, count in zip(parents, counts, strict=True):
        own[count:] = -1
    return parents


def step(counts: list[int], lengths: list[int], page: int, gap: int = 1) -> tuple[PagedRows, torch.Tensor, torch.Tensor]:
    """Rows of requests that lie ``gap`` rows apart, pages in disorder; the slots of the flat batch, and the parents."""
    needed = [-(-(length + count) // page) for length, count in zip(lengths, counts, strict=True)]
    order = (torch.randperm(sum(needed)) + 1).split(needed)
    table = torch.full((len(counts), max(needed) + 1), 10**6, dtype=torch.int32)
    for own, pages in zip(table, order, strict=True):
        own[: len(pages)] = pages
    starts = torch.tensor([gap + sum(counts[:b]) + gap * b for b in range(len(counts))])
    slots = torch.full((int(starts[-1]) + counts[-1] + gap,), -1)
    for b, (start, count, length) in enumerate(zip(starts.tolist(), counts, lengths, strict=True)):
        positions = torch.arange(length, length + count)
        slots[start : start + count] = table[b, positions // page].long() * page + positions % page
    parents = random_parents(counts)
    mask = row_mask(parents)
    return PagedRows(starts, torch.tensor(counts), torch.tensor(lengths), table, mask, parents.shape[1]), slots, parents


def moved(rows: PagedRows, mask: torch.Tensor) -> PagedRows:
    return PagedRows(*(part.to(DEVICE) for part in (rows.starts, rows.counts, rows.lengths, rows.table, mask)), rows.widest)


def compare(counts, lengths, kv_heads, group, head_dim, page, layout, dtype=torch.float32, scale=0.3):
    rows, slots, parents = step(counts, lengths, page)
    pages = int(rows.table[rows.table < 10**6].max()) + 1
    keys, values = (part.to(dtype) for part in LAYOUTS[layout](pages, page, kv_heads, head_dim))
    queries = torch.randn(len(slots), group * kv_heads, head_dim).to(dtype)
    wanted, found = torch.full((2, *queries.shape), 7.0)
    paged_attention(queries.float(), keys.float(), values.float(), rows, scale, wanted)
    found = found.to(dtype).to(DEVICE)
    kernel(*(part.to(DEVICE) for part in (queries, keys, values)), moved(rows, ancestor_bits(parents)), scale, found)
    own = slots >= 0
    assert (found.cpu()[~own] == 7).all() and (wanted[~own] == 7).all(), "rows of no request stay as they are"
    assert float((found.float().cpu()[own] - wanted[own]).norm() / wanted[own].norm()) < TOLERANCE[dtype]


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_ragged_trees_over_pages_in_disorder(data):
    batch = data.draw(st.integers(1, 3))
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    counts = data.draw(st.lists(st.integers(0, 20), min_size=batch, max_size=batch).filter(any))
    lengths = data.draw(st.lists(st.integers(0, 150), min_size=batch, max_size=batch))
    kv_heads, group = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 3]))
    head_dim, page = data.draw(st.sampled_from([16, 24])), data.draw(st.sampled_from([1, 16, 48]))
    compare(counts, lengths, kv_heads, group, head_dim, page, data.draw(st.sampled_from(sorted(LAYOUTS))))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim, group", [(64, 3), (128, 4)])
def test_the_head_sizes_of_real_models(dtype, head_dim, group):
    torch.manual_seed(head_dim)
    compare([9, 0, 17], [100, 30, 0], 2, group, head_dim, 16, "row by row", dtype)
    compare([5], [70], 2, group, head_dim, 16, "head by head", dtype, head_dim**-0.5)


@pytest.mark.parametrize("nodes", [1, 15, 31, 63, 64, 128])
def test_node_budgets(nodes):
    torch.manual_seed(nodes)
    compare([nodes + 1, 1 + nodes // 2], [nodes + 70, 5], 1, 2, 16, 16, "row by row")


@pytest.mark.parametrize("parts", [1, 3, 64])
def test_contexts_in_any_number_of_parts(parts, monkeypatch):
    torch.manual_seed(parts)
    monkeypatch.setattr(tree_attention, "programs_at_once", lambda device: 2 * parts)
    compare([4, 0], [130, 0], 1, 3, 16, 16, "row by row")
    compare([17, 6], [3, 200], 1, 2, 16, 16, "head by head")


def test_strides_that_a_kernel_does_not_read_are_refused():
    rows, _, parents = step([2], [3], 16)
    keys, queries = torch.zeros(2, 16, 2, 16), torch.zeros(4, 2, 16)
    with pytest.raises(ValueError, match="must be the same"):
        kernel(queries, keys, keys.transpose(1, 2).contiguous().transpose(1, 2), moved(rows, ancestor_bits(parents)), 1.0, queries.clone())


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_accepted_rows_move_to_their_slots_in_every_layer(data):
    batch, longest, page = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 7)), data.draw(st.sampled_from([1, 4, 16]))
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    rows, slots, _ = step([12] * batch, data.draw(st.lists(st.integers(0, 40), min_size=batch, max_size=batch)), page)
    path = torch.stack([torch.randperm(12)[:longest].sort().values for _ in range(batch)])
    pages, layout = int(rows.table[rows.table < 10**6].max()) + 1, LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))]
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    layers = [tuple(part.to(dtype).to(DEVICE) for part in layout(pages, page, 2, 24)) for _ in range(3)]
    wanted = PagedCaches([tuple(part.cpu().clone() for part in layer) for layer in layers])
    wanted.keep(slots, rows.starts, path)
    found = PagedCaches(layers)
    commit.keep_slots(found.first, found.addresses, *(part.to(DEVICE) for part in (slots, rows.starts, path)))
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(found.parts, wanted.parts, strict=True))


def test_layers_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"caches \[2, 4, 1, 8\] and \[3, 4, 1, 8\]"):
        PagedCaches([(torch.zeros(2, 4, 1, 8), torch.zeros(3, 4, 1, 8))])


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_what_a_round_gives_is_the_references(data):
    batch, rows = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 20))
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    tokens, chosen = torch.randint(3, (2, batch, rows))
    longest = data.draw(st.integers(1, rows))
    walked = walk(tokens, random_parents([rows] * batch), chosen, longest)
    width = longest + data.draw(st.integers(0, 3))
    wanted = emitted(tokens, *walked, width)
    assert not device.interpreted and wanted.dtype == torch.int32
    for given, path, kept, bonus in zip(wanted.tolist(), *(part.tolist() for part in walked), strict=True):
        assert given[kept - 1] == bonus and set(given[kept:]) <= {-1} and path[0] == 0
    found = walk_kernels.emitted(*(part.to(DEVICE) for part in (tokens, *walked)), width)
    assert found.dtype == torch.int32 and torch.equal(found.cpu(), wanted)
