"""The DFlash drafter: a block-diffusion transformer that fills a block of masks in one pass (arXiv 2602.06036, section 3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import apply_rope, attention, rope_frequencies, rope_tables
from strategies.dflash.config import DrafterConfig


class Attention(nn.Module):
    """Queries come from the block alone; keys and values from the context features and the block, by the same weights."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, self.head_dim = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, hidden, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, config.rms_norm_eps)

    def queries(self, x: Tensor, rope) -> Tensor:
        return apply_rope(self.q_norm(self._heads(self.q_proj(x))), *rope)

    def keys_values(self, x: Tensor, rope) -> tuple[Tensor, Tensor]:
        return apply_rope(self.k_norm(self._heads(self.k_proj(x))), *rope), self._heads(self.v_proj(x))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Norms, residuals and MLP touch the block only; context features enter as keys and values, as they are."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, rope, context_keys: Tensor, context_values: Tensor, visible: Tensor | None) -> Tensor:
        """``x`` ``[batch, block rows, hidden]`` attends to context rows, then to block rows, as ``visible`` allows."""
        normed = self.input_layernorm(x)
        keys, values = self.self_attn.keys_values(normed, rope)
        keys = torch.cat([context_keys, keys], dim=2)
        values = torch.cat([context_values, values], dim=2)
        x = x + self.self_attn.o_proj(attention(self.self_attn.queries(normed, rope), keys, values, visible))
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlashDrafter(nn.Module):
    """Parameter names are the published checkpoint's. Embedding and head are the target's and not part of it."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def frequencies(self, device: torch.device) -> Tensor:
        return rope_frequencies(self.config.rope_theta, self.config.head_dim, device)

    def rope(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return rope_tables(positions, self.frequencies(positions.device), dtype)

    def context(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Every layer's keys and values of new context rows: ``features`` ``[batch, rows, taps * hidden]``."""
        shared = self.hidden_norm(self.fc(features))
        rope = self.rope(positions, shared.dtype)
        return [layer.self_attn.keys_values(shared, rope) for layer in self.layers]

    def forward(self, block: Tensor, positions: Tensor, context: list[tuple[Tensor, Tensor]], visible: list) -> Tensor:
        """``block`` embeddings ``[batch, rows, hidden]`` -> final-normed hidden states, ready for the target's head.

        ``visible`` holds one mask a layer, ``[batch, rows, context + rows]`` or None where everything is seen.
        """
        rope = self.rope(positions, block.dtype)
        for layer, (keys, values), mask in zip(self.layers, context, visible, strict=True):
            block = layer(block, rope, keys, values, mask)
        return self.norm(block)
