"""Trees on the GPU's attention backend, with vLLM's FlashAttention stood in for by the same sums in plain torch."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from kernels import ancestor_mask, attention, visible_rows
from strategies.ddtree.vllm_plugin.attention import StepAttention, commit
from strategies.ddtree.vllm_plugin.plan import Grown, Step, Verified

HEADS, KV_HEADS, DIM, BLOCK, BLOCKS = 4, 2, 8, 16, 9
# Two trees and a chain between them: rows 0..3, 4..5, 6..8 of the batch; contexts of 19, 5 and 33 tokens.
STEP = Step(
    [
        Verified(0, 0, 19, Grown([-1, 5, 6, 7], [-1, 0, 0, 1], [0, 1, 1, 2]), [0, 2]),
        Verified(1, 4, 5, Grown.chain([3])),
        Verified(2, 6, 33, Grown([-1, 5, 6], [-1, 0, 0], [0, 1, 1]), [0, 2]),
    ],
    9,
)
TABLE = torch.tensor([[4, 2, 0], [7, 0, 0], [1, 8, 5]], dtype=torch.int32)


def varlen(q, k, v, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, block_table, return_softmax_lse, fa_version):
    """Output ``[rows, heads, dim]`` and log-sum-exp ``[heads, rows]``, as FlashAttention 3 of vLLM 0.20.1 returns them."""
    assert {t.dtype for t in (cu_seqlens_q, seqused_k, block_table)} == {torch.int32} and not causal and fa_version == 3
    outs, lses = [], []
    for i, (a, b) in enumerate(zip(cu_seqlens_q.tolist(), cu_seqlens_q.tolist()[1:], strict=False)):
        assert b - a <= max_seqlen_q and seqused_k[i] <= max_seqlen_k
        keys, values = (part[block_table[i].long()].flatten(0, 1)[: seqused_k[i]].repeat_interleave(HEADS // KV_HEADS, 1) for part in (k, v))
        scores = torch.einsum("rhd,khd->hrk", q[a:b], keys) * softmax_scale
        outs.append(torch.einsum("hrk,khd->rhd", scores.softmax(-1), values))
        lses.append(scores.logsumexp(-1))
    return torch.cat(outs), torch.cat(lses, 1)


class StockImpl:
    """vLLM's own implementation, as far as the plugin touches it."""

    scale, head_size, vllm_flash_attn_version = DIM**-0.5, DIM, 3

    def forward(self, layer, query, key, value, cache, metadata, output, output_scale=None, output_block_scale=None):
        output.fill_(7.0)

    def do_kv_cache_update(self, layer, key, value, cache, slots):
        assert slots.is_contiguous() and slots.dtype == torch.int64
        keys, values = cache.unbind(0) if cache.dim() == 5 else cache.transpose(1, 2).split(DIM, dim=-1)
        for row, slot in enumerate(slots.tolist()):
            keys[slot // BLOCK, slot % BLOCK], values[slot // BLOCK, slot % BLOCK] = key[row], value[row]


@pytest.fixture(scope="module")
def flash():
    """The plugin's module, imported over a stand-in for vLLM's two."""
    usual = {name: module for name, module in sys.modules.items() if name == "vllm" or name.startswith("vllm.")}
    ours = "strategies.ddtree.vllm_plugin.flash_attention"
    for name in (*usual, ours):
        sys.modules.pop(name, None)
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends", "vllm.v1.attention.backend"):
        sys.modules[name] = ModuleType(name)
    sys.modules["vllm.v1.attention.backend"].AttentionCGSupport = SimpleNamespace(NEVER="never")
    stock = sys.modules["vllm.v1.attention.backends.flash_attn"] = ModuleType("flash_attn")
    stock.FlashAttentionBackend = stock.FlashAttentionMetadataBuilder = type("Stock", (), {})
    stock.FlashAttentionImpl, stock.flash_attn_varlen_func = StockImpl, varlen
    import importlib

    yield importlib.import_module(ours)
    for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")] + [ours]:
        del sys.modules[name]
    sys.modules.update(usual)


def placed(step):
    """Each row's slot behind its request's context."""
    slots = []
    for request in step.requests:
        positions = torch.arange(request.base, request.base + request.rows)
        slots.append(TABLE[request.index, positions // BLOCK].long() * BLOCK + positions % BLOCK)
    return torch.cat(slots)


CACHES = {"0.20": (2, BLOCKS, BLOCK, KV_HEADS, DIM), "0.32": (BLOCKS, KV_HEADS, BLOCK, 2 * DIM)}


@pytest.mark.parametrize("version", CACHES)
def test_each_row_of_a_tree_sees_context_and_ancestors_and_accepted_rows_move(flash, version):
    torch.manual_seed(0)
    impl = flash.TreeFlashImpl()
    cache = torch.randn(CACHES[version])
    layer = SimpleNamespace(impl=impl, kv_cache=cache)
    query = torch.randn(STEP.tokens, HEADS, DIM)
    key, value = torch.randn(2, STEP.tokens, KV_HEADS, DIM)
    slots = placed(STEP)
    impl.do_kv_cache_update(layer, key, value, cache, slots)
    assert all(torch.equal(*pair) for pair in zip(impl.cache_rows(cache, slots), (key, value), strict=True))

    output = torch.empty(STEP.tokens, HEADS * DIM)
    padded_slots = torch.cat([slots, torch.full((3,), -1)])  # as vLLM pads them to a captured size
    impl.forward(layer, query, key, value, cache, SimpleNamespace(ddtree=StepAttention(STEP, padded_slots, TABLE)), output)
    for request in STEP.requests:
        rows = slice(request.start, request.start + request.rows)
        if not request.tree.branches:
            assert (output[rows] == 7).all(), "a chain is vLLM's own affair"
            continue
        before = torch.arange(request.base)
        context = impl.cache_rows(cache, TABLE[request.index, before // BLOCK].long() * BLOCK + before % BLOCK)
        keys, values = (torch.cat([old, new[rows]]).transpose(0, 1)[None] for old, new in zip(context, (key, value), strict=True))
        mask = visible_rows(ancestor_mask(torch.tensor([request.tree.parents])), request.base)
        torch.testing.assert_close(output[rows], attention(query[rows].transpose(0, 1)[None], keys, values, mask)[0])

    commit([layer], slots, STEP.trees)
    moved = impl.cache_rows(cache, slots[[1, 7]])
    assert torch.equal(moved[0], key[[2, 8]]) and torch.equal(moved[1], value[[2, 8]])


def test_captured_graphs_leave_attention_out(flash):
    assert flash.TreeFlashBuilder.get_cudagraph_support(None, None) == "never"
    assert flash.TreeFlashBackend.get_impl_cls() is flash.TreeFlashImpl and flash.TreeFlashBackend.get_builder_cls() is flash.TreeFlashBuilder
