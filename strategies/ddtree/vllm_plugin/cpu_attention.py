"""Trees on vLLM's CPU backend: this project's reference attention over rows read from the paged cache."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl, _get_attn_isa

from kernels import attention, visible_rows
from kernels.paged import moves
from strategies.ddtree.vllm_plugin.attention import StepAttention, TreeAttention


class TreeCPUImpl(TreeAttention, CPUAttentionBackendImpl):
    BACKEND = "CPU_ATTN"

    def attend(self, told: StepAttention, query, key, value, cache, output) -> None:
        block, rows = cache.shape[2], told.rows
        for index, (start, count, length) in enumerate(zip(*map(Tensor.tolist, (rows.starts, rows.counts, rows.lengths)), strict=True)):
            if count == 0:
                continue
            own, before = slice(start, start + count), torch.arange(length)
            context = self.cache_rows(cache, rows.table[index, before // block].long() * block + before % block)
            keys, values = (torch.cat([old, new[own]]).transpose(0, 1)[None] for old, new in zip(context, (key, value), strict=True))
            visible = visible_rows(rows.mask[index, None, :count, :count], length)
            seen = attention(query[own].transpose(0, 1)[None], keys, values, visible)
            output[own] = seen.view(count, self.num_heads, self.head_size)

    @staticmethod
    def caches(layers) -> CPUCaches:
        return CPUCaches(layers)

    def cache_rows(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values ``[n, kv_heads, head_dim]`` at ``slots`` ``[n]`` of a layer's cache."""
        blocks, kv_heads, block, width = cache.shape
        keys_at, values_at = _places(cache.dtype, block, width // 2)
        flat, heads = cache.view(blocks, kv_heads, -1), torch.arange(kv_heads)[None, :, None]
        where, within = (slots // block)[:, None, None], slots % block
        return flat[where, heads, keys_at[within][:, None]], flat[where, heads, values_at[within][:, None]]


class CPUCaches:
    """vLLM's own writer puts accepted rows in place, so that no packing is written by hand."""

    def __init__(self, layers) -> None:
        self._layers = layers

    def keep(self, slots: Tensor, starts: Tensor, path: Tensor) -> None:
        sources, targets = moves(slots, starts, path)
        if len(targets):
            for layer in self._layers:
                keys, values = layer.impl.cache_rows(layer.kv_cache, sources)
                layer.impl.do_kv_cache_update(layer, keys, values, layer.kv_cache, targets)


class TreeCPUBackend(CPUAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type[TreeCPUImpl]:
        return TreeCPUImpl


@cache
def _places(dtype: torch.dtype, block: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Where in a block of one head each number of each row lies: keys' and values' places, ``[block, head_dim]`` each.

    vLLM packs keys as the machine's instructions like them, differently for AMX, AVX and others. The packing is learned
    from vLLM's own writer: two passes write every number's digits to base 128, which every dtype holds exactly.
    """
    isa = _get_attn_isa(dtype, block, head_dim)
    numbers = torch.arange(2 * block * head_dim)
    digits = []
    for digit in (numbers // 128, numbers % 128):
        region = torch.zeros(1, 1, block, 2 * head_dim, dtype=dtype)
        keys, values = region.view(1, 1, block * 2, head_dim).chunk(2, dim=2)
        key, value = digit.to(dtype).view(2, block, 1, head_dim)
        ops.cpu_attn_reshape_and_cache(
            key.contiguous(), value.contiguous(), keys, values, torch.arange(block), isa,
            k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto",
        )  # fmt: skip
        digits.append(region.flatten().long())
    found = digits[0] * 128 + digits[1]
    places = torch.empty_like(numbers).scatter_(0, found, numbers)
    if not torch.equal(found[places], numbers):
        raise RuntimeError(f"vLLM's {isa} cache layout for {dtype}, {block} rows of {head_dim}, is no rearrangement of its rows")
    return places[: block * head_dim].view(block, head_dim), places[block * head_dim :].view(block, head_dim)
