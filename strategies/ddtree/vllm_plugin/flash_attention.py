"""Trees on vLLM's FlashAttention backend: this project's kernel over the paged cache, one launch a layer."""

from __future__ import annotations

from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl, FlashAttentionMetadataBuilder

from kernels import PagedCaches, paged_attention
from strategies.ddtree.vllm_plugin import full_graphs
from strategies.ddtree.vllm_plugin.attention import StepAttention, TreeAttention
from strategies.ddtree.vllm_plugin.versions import flash_cache


class TreeFlashImpl(TreeAttention, FlashAttentionImpl):
    BACKEND = "FLASH_ATTN"

    def attend(self, told: StepAttention, query, key, value, cache, output) -> None:
        paged_attention(query, *flash_cache(cache, self.head_size), told.rows, self.scale, output)

    @staticmethod
    def caches(layers) -> PagedCaches:
        return PagedCaches([flash_cache(layer.kv_cache, layer.impl.head_size) for layer in layers])


class TreeFlashBuilder(FlashAttentionMetadataBuilder):
    """Says what may be captured: the pieces between attention layers, or, where the configuration asks for ``full_graphs``,
    passes in which every request has a whole tree (``TreeRunner`` sees to it that no others replay them)."""

    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec) -> AttentionCGSupport:
        return AttentionCGSupport.UNIFORM_BATCH if full_graphs(vllm_config) else AttentionCGSupport.NEVER

    def build(self, common_prefix_len, common_attn_metadata, fast_build: bool = False):
        # Fast is without the schedule of FlashAttention's kernel, which takes a call and two copies.
        return super().build(common_prefix_len, common_attn_metadata, fast_build or TreeFlashImpl.trees_alone)


class TreeFlashBackend(FlashAttentionBackend):
    @staticmethod
    def get_builder_cls() -> type[TreeFlashBuilder]:
        return TreeFlashBuilder

    @staticmethod
    def get_impl_cls() -> type[TreeFlashImpl]:
        return TreeFlashImpl
