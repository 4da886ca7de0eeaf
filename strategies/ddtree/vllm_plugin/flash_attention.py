"""Trees on vLLM's FlashAttention backend: its kernel over the paged context, a small masked attention over the new rows, a merge."""

from __future__ import annotations

from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
    flash_attn_varlen_func,
)

from kernels import merge_attention
from strategies.ddtree.vllm_plugin.attention import StepAttention, TreeAttention
from strategies.ddtree.vllm_plugin.rectangles import Padded, new_rows, padded
from strategies.ddtree.vllm_plugin.versions import flash_cache


class TreeFlashImpl(TreeAttention, FlashAttentionImpl):
    BACKEND = "FLASH_ATTN"

    def attend(self, step: StepAttention, query, key, value, cache, output) -> None:
        if "padded" not in step.made:
            step.made["padded"] = padded(step)
        trees: Padded = step.made["padded"]
        keys, values = flash_cache(cache, self.head_size)
        own = query[trees.rows]
        context, context_lse = flash_attn_varlen_func(
            q=own, k=keys, v=values, cu_seqlens_q=trees.starts, max_seqlen_q=trees.widest, seqused_k=trees.contexts,
            max_seqlen_k=trees.longest, softmax_scale=self.scale, causal=False, block_table=trees.table,
            return_softmax_lse=True, fa_version=self.vllm_flash_attn_version,
        )  # fmt: skip
        flat = new_rows(trees, own, key[trees.rows], value[trees.rows], self.scale)
        merged = merge_attention(context.float(), context_lse.transpose(0, 1), *flat)
        output[trees.rows] = merged.to(output.dtype)

    def cache_rows(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = flash_cache(cache, self.head_size)
        block = keys.shape[1]
        return keys[slots // block, slots % block], values[slots // block, slots % block]


class TreeFlashBuilder(FlashAttentionMetadataBuilder):
    """Keeps attention out of captured graphs, which would replay vLLM's own: vLLM then captures the pieces between."""

    _cudagraph_support = AttentionCGSupport.NEVER

    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec) -> AttentionCGSupport:
        return cls._cudagraph_support


class TreeFlashBackend(FlashAttentionBackend):
    @staticmethod
    def get_builder_cls() -> type[TreeFlashBuilder]:
        return TreeFlashBuilder

    @staticmethod
    def get_impl_cls() -> type[TreeFlashImpl]:
        return TreeFlashImpl
