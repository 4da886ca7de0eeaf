"""Draft-tree kernels: plain-torch references that a reader can check against the papers, and Triton kernels for a GPU."""

from kernels.acceptance import GreedyChoices, SampledChoices, accept, accepted_path, emitted, greedy_rows, walk
from kernels.attention import attention, rotated_attention, visible_rows
from kernels.cache import keep_rows, write_rows
from kernels.chains import chain_columns, following_tokens
from kernels.decoder_layer import LayerWeights, over_cache, over_caches, side_by_side, stacked
from kernels.device import on_gpu
from kernels.layers import (
    apply_rope,
    linear_add,
    norm_linear,
    norm_swiglu,
    norms_side_by_side,
    rope_frequencies,
    rope_tables,
    rotate,
    rotate_into,
    swiglu,
    write_context,
)
from kernels.masks import ancestor_bits, ancestor_mask, unpack_bits
from kernels.outcome import TOLD, settle
from kernels.packed import PackedLinear, pack, packed, products_of
from kernels.paged import PagedCaches, PagedRows, paged_attention
from kernels.recorded import Recorded
from kernels.rows import Rows, causal_mask, row_mask
from kernels.sampling import draw, likeliest, likeliest_with_logprob, probabilities
from kernels.size import pick_size
from kernels.switched import Switched, can_switch
from kernels.tree import best_first_tree

__all__ = [
    "TOLD",
    "GreedyChoices",
    "LayerWeights",
    "PackedLinear",
    "PagedCaches",
    "PagedRows",
    "Recorded",
    "Rows",
    "SampledChoices",
    "Switched",
    "accept",
    "accepted_path",
    "ancestor_bits",
    "ancestor_mask",
    "apply_rope",
    "attention",
    "best_first_tree",
    "can_switch",
    "causal_mask",
    "chain_columns",
    "draw",
    "emitted",
    "following_tokens",
    "greedy_rows",
    "keep_rows",
    "likeliest",
    "likeliest_with_logprob",
    "linear_add",
    "norm_linear",
    "norm_swiglu",
    "norms_side_by_side",
    "on_gpu",
    "over_cache",
    "over_caches",
    "pack",
    "packed",
    "paged_attention",
    "pick_size",
    "products_of",
    "probabilities",
    "rope_frequencies",
    "rope_tables",
    "rotate",
    "rotate_into",
    "rotated_attention",
    "row_mask",
    "settle",
    "side_by_side",
    "stacked",
    "swiglu",
    "unpack_bits",
    "visible_rows",
    "walk",
    "write_context",
    "write_rows",
]
