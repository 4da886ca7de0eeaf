"""Trees on the GPU's attention backend, with a stand-in for vLLM's own and the references in place of the kernels."""

from types import SimpleNamespace

import pytest
import torch
from vllm_standin import plugin

from kernels import ancestor_mask, attention, visible_rows
from strategies.ddtree.vllm_plugin.attention import StepAttention
from strategies.ddtree.vllm_plugin.plan import Planned, Step

HEADS, KV_HEADS, DIM, BLOCK, BLOCKS = 4, 2, 8, 16, 9
# Two trees and a chain between them: rows 0..3, 4..5, 6..8 of the batch; contexts of 19, 5 and 33 tokens.
REQUESTS = [Planned("a", 0, 0, 19, 4, True), Planned("b", 5, 5, 6, 1, False), Planned("c", 6, 6, 33, 3, True)]
TREES = [[[9, 5, 6, 7], [-1, 0, 0, 1], [0, 1, 1, 2]], [[0], [-1], [0]], [[9, 5, 6], [-1, 0, 0], [0, 1, 1]]]
STEP = Step(REQUESTS, [torch.tensor(tree) for tree in TREES], 9, torch.zeros(9, dtype=torch.int64))
PATH = torch.tensor([[0, 2], [0, 1], [0, 2]])
TABLE = torch.tensor([[4, 2, 0], [7, 0, 0], [1, 8, 5]], dtype=torch.int32)


@pytest.fixture(scope="module")
def flash():
    with plugin() as modules:
        yield modules.flash_attention


def slots_of(index: int, positions: torch.Tensor) -> torch.Tensor:
    return TABLE[index, positions // BLOCK].long() * BLOCK + positions % BLOCK


# Each row's slot behind its request's context: of the chain the first row's, too.
SLOTS = torch.cat([slots_of(0, torch.arange(19, 23)), slots_of(1, torch.arange(5, 7)), slots_of(2, torch.arange(33, 36))])
CACHES = {"0.20": (2, BLOCKS, BLOCK, KV_HEADS, DIM), "0.32": (BLOCKS, KV_HEADS, BLOCK, 2 * DIM)}


@pytest.mark.parametrize("version", CACHES)
def test_each_row_of_a_tree_sees_context_and_ancestors_and_accepted_rows_move(flash, version):
    torch.manual_seed(0)
    impl = flash.TreeFlashImpl(DIM)
    cache = torch.randn(CACHES[version])
    layer = SimpleNamespace(impl=impl, kv_cache=cache)
    query = torch.randn(STEP.at.max() + 1, HEADS, DIM)
    key, value = torch.randn(2, len(query), KV_HEADS, DIM)
    parts = flash.flash_cache(cache, DIM)

    def rows_at(slots):
        return tuple(part[slots // BLOCK, slots % BLOCK] for part in parts)

    for part, new in zip(parts, (key, value), strict=True):
        part[SLOTS // BLOCK, SLOTS % BLOCK] = new
    output = torch.empty(len(query), HEADS * DIM)
    padded_slots = torch.cat([SLOTS, torch.full((3,), -1)])  # as vLLM pads them to a captured size
    impl.forward(layer, query, key, value, cache, SimpleNamespace(ddtree=StepAttention.of(STEP, padded_slots, TABLE)), output)
    for index, request in enumerate(REQUESTS):
        rows = slice(request.start, request.start + request.rows)
        if not request.is_tree:
            assert (output[rows] == 7).all(), "a chain is vLLM's own affair"
            continue
        context = rows_at(slots_of(index, torch.arange(request.base)))
        keys, values = (torch.cat([old, new[rows]]).transpose(0, 1)[None] for old, new in zip(context, (key, value), strict=True))
        mask = visible_rows(ancestor_mask(torch.tensor([TREES[index][1]])), request.base)
        torch.testing.assert_close(output[rows], attention(query[rows].transpose(0, 1)[None], keys, values, mask)[0])

    flash.TreeFlashImpl.caches([layer, layer]).keep(padded_slots, STEP.starts, PATH)
    assert all(torch.equal(found, new[[2, 8]]) for found, new in zip(rows_at(SLOTS[[1, 7]]), (key, value), strict=True))
    stays = [0, 2, 3, 4, 5, 6, 8]
    assert all(torch.equal(found, new[stays]) for found, new in zip(rows_at(SLOTS[stays]), (key, value), strict=True))


def test_a_step_of_trees_alone_leaves_vllms_kernel_out(flash):
    step = Step([Planned("a", 0, 0, 19, 4, True)], [torch.tensor(TREES[0])], 4, torch.arange(19, 23))
    impl, cache, query = flash.TreeFlashImpl(DIM), torch.randn(CACHES["0.20"]), torch.randn(4, HEADS, DIM)
    output = torch.zeros(6, HEADS * DIM)
    told = SimpleNamespace(ddtree=StepAttention.of(step, SLOTS, TABLE[:1]))
    impl.forward(None, torch.cat([query, query[:2]]), None, None, cache, told, output)
    assert output[:4].any(dim=1).all() and not output[4:].any()


def test_captured_graphs_leave_attention_out_unless_asked(flash):
    for asked, support in (({}, "never"), ({"full_graphs": False}, "never"), ({"full_graphs": True}, "uniform")):
        config = SimpleNamespace(additional_config={"ddtree": {"budget": 3} | asked})
        assert flash.TreeFlashBuilder.get_cudagraph_support(config, None) == support
    assert flash.TreeFlashBackend.get_impl_cls() is flash.TreeFlashImpl and flash.TreeFlashBackend.get_builder_cls() is flash.TreeFlashBuilder


def test_a_schedule_for_vllms_kernel_is_made_where_it_runs(flash, monkeypatch):
    builder = flash.TreeFlashBuilder()
    assert builder.build(0, None) is False and builder.build(0, None, fast_build=True) is True
    monkeypatch.setattr(flash.TreeFlashImpl, "trees_alone", True)
    assert builder.build(0, None) is True
