"""Trees on vLLM's FlashAttention backend: its kernel over the paged context, a small masked attention over the new rows, a merge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
    flash_attn_varlen_func,
)

from kernels import attention_with_lse, merge_attention
from strategies.ddtree.vllm_plugin.attention import StepAttention, TreeAttention
from strategies.ddtree.vllm_plugin.versions import flash_cache_rows


@dataclass(frozen=True)
class Padded:
    """A step's trees as rectangles of ``[trees, widest]`` rows, made once for all layers.

    ``rows`` are the trees' rows in the flat batch, ``place`` ``[trees, widest]`` says which of them fill the rectangles (any,
    where ``mask`` ``[trees, widest, widest]`` lets nobody see), ``of`` is the way back.
    """

    rows: Tensor
    place: Tensor
    of: Tensor
    mask: Tensor
    starts: Tensor
    contexts: Tensor
    table: Tensor
    widest: int
    longest: int


class TreeFlashImpl(TreeAttention, FlashAttentionImpl):
    BACKEND = "FLASH_ATTN"

    def attend(self, step: StepAttention, query, key, value, cache, output) -> None:
        if "padded" not in step.made:
            step.made["padded"] = padded(step)
        trees: Padded = step.made["padded"]
        keys, values = cache.unbind(0)
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
        return flash_cache_rows(cache, slots)


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


def padded(step: StepAttention) -> Padded:
    device, trees = step.slots.device, step.trees
    widest = max(tree.rows for tree in trees)
    rows, place, of, starts = [], [], [], [0]
    mask = torch.zeros(len(trees), widest, widest, dtype=torch.bool)
    for number, (tree, seen) in enumerate(zip(trees, step.masks, strict=True)):
        first = len(rows)
        rows += range(tree.start, tree.start + tree.rows)
        place.append([first + min(row, tree.rows - 1) for row in range(widest)])
        of += range(number * widest, number * widest + tree.rows)
        starts.append(len(rows))
        mask[number, : tree.rows, : tree.rows] = seen[0].cpu()
    contexts = [tree.base for tree in trees]
    ints = {"dtype": torch.int32, "device": device}
    return Padded(
        rows=torch.tensor(rows, device=device),
        place=torch.tensor(place, device=device),
        of=torch.tensor(of, device=device),
        mask=mask.to(device),
        starts=torch.tensor(starts, **ints),
        contexts=torch.tensor(contexts, **ints),
        table=step.table[torch.tensor([tree.index for tree in trees], device=device)],
        widest=widest,
        longest=max(contexts),
    )


def new_rows(trees: Padded, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention among the new rows: ``[rows, heads, head_dim]`` and log-sum-exp ``[rows, heads]``, fp32, for ``trees.rows``."""
    rectangles = (part[trees.place].transpose(1, 2) for part in (query, key, value))
    out, lse = attention_with_lse(*rectangles, trees.mask, scale)
    return out.transpose(1, 2).flatten(0, 1)[trees.of], lse.transpose(1, 2).flatten(0, 1)[trees.of]
