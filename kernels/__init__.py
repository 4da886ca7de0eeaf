"""Draft-tree kernels: plain-torch references that a reader can check against the papers."""

from kernels.acceptance import accept, greedy_choice, greedy_rows, sampled_choice, walk
from kernels.attention import attention, attention_with_lse, merge_attention, visible_rows
from kernels.cache import keep_rows, keep_rows_of_all
from kernels.layers import apply_rope, rope_tables, swiglu
from kernels.masks import ancestor_bits, ancestor_mask, unpack_bits
from kernels.sampling import draw, probabilities
from kernels.span_attention import Span
from kernels.tree import best_first_tree

__all__ = [
    "Span",
    "accept",
    "ancestor_bits",
    "ancestor_mask",
    "apply_rope",
    "attention",
    "attention_with_lse",
    "best_first_tree",
    "draw",
    "greedy_choice",
    "greedy_rows",
    "keep_rows",
    "keep_rows_of_all",
    "merge_attention",
    "probabilities",
    "rope_tables",
    "sampled_choice",
    "swiglu",
    "unpack_bits",
    "visible_rows",
    "walk",
]
