"""Draft-tree kernels: plain-torch references that a reader can check against the papers."""

from kernels.acceptance import accept, greedy_choice, sampled_choice
from kernels.attention import attention, visible_rows
from kernels.cache import keep_rows
from kernels.layers import apply_rope, rope_tables, swiglu
from kernels.masks import ancestor_mask
from kernels.sampling import draw, probabilities
from kernels.span_attention import Span
from kernels.tree import best_first_tree

__all__ = [
    "Span",
    "accept",
    "ancestor_mask",
    "apply_rope",
    "attention",
    "best_first_tree",
    "draw",
    "greedy_choice",
    "keep_rows",
    "probabilities",
    "rope_tables",
    "sampled_choice",
    "swiglu",
    "visible_rows",
]
