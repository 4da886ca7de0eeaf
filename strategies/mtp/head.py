"""A multi-token-prediction head: one transformer block applied again and again (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import apply_rope, attention, norms_side_by_side, rope_frequencies, rope_tables


@dataclass(frozen=True)
class HeadConfig:
    """``trained_steps``: how many times in a row the head was fed its own output in training."""

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    num_target_layers: int
    rms_norm_eps: float
    rope_theta: float
    trained_steps: int


class MTPHead(nn.Module):
    """[norm(embedding of the next token) ; norm(hidden state)] -> projection -> block -> hidden state of the next step.

    Embedding and head are the target's. Hidden states are outputs of the last layer before the final norm.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        heads, kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.embedding_norm = nn.RMSNorm(hidden, eps)
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.projection = nn.Linear(2 * hidden, hidden, bias=False)
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=False)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)
        self.gate_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, hidden, bias=False)
        self.norm = nn.RMSNorm(hidden, eps)

    def join(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """``[batch, rows, hidden]`` twice -> the residual stream."""
        return self.projection(norms_side_by_side(embedding, hidden, self.embedding_norm, self.hidden_norm))

    def enter(self, embedding: Tensor, hidden: Tensor, rope) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``[batch, rows, hidden]`` twice -> residual stream, queries, keys, values of the rows."""
        x = self.join(embedding, hidden)
        normed = self.input_layernorm(x)
        queries = apply_rope(self._heads(self.q_proj(normed)), *rope)
        keys = apply_rope(self._heads(self.k_proj(normed)), *rope)
        return x, queries, keys, self._heads(self.v_proj(normed))

    def leave(self, x: Tensor, queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
        """Attention and MLP; returns the rows' hidden states. ``self.norm`` and the target's head make logits of them."""
        x = x + self.o_proj(attention(queries, keys, values, visible))
        normed = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))

    def rope(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return rope_tables(positions, rope_frequencies(self.config.rope_theta, self.head_dim, positions.device), dtype)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
