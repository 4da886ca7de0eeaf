"""A DFlash drafter for decoding: its layers over a cache, and the context's keys and values of all layers in one product."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import LayerWeights, Rows, norm_linear, over_caches, packed, side_by_side, stacked, write_context
from strategies.dflash.drafter import DFlashDrafter, Layer


class FusedDrafter:
    """The same drafter as ``drafter``, whose projections become parts of larger ones."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        config, layers = drafter.config, drafter.layers
        self.drafter, self.config = drafter, config
        both = (part for layer in layers for part in (layer.self_attn.k_proj, layer.self_attn.v_proj))
        self._context = packed(stacked(*both))
        self._fc, self._hidden_norm, self._norm = map(packed, (drafter.fc, drafter.hidden_norm, drafter.norm))
        self._key_norms = torch.stack([layer.self_attn.k_norm.weight.detach() for layer in layers])
        self.layers = [_weights(layer, config.num_attention_heads) for layer in layers]

    def read(self, features: Tensor, lengths: Tensor, cache: Tensor) -> None:
        """Write all layers' keys and values of new context rows, ``features`` ``[batch, rows, taps * hidden]``, behind
        ``lengths`` ``[batch]`` of ``cache`` ``[layers, 2, batch, kv_heads, capacity, head_dim]``."""
        both = norm_linear(self._fc(features), self._hidden_norm, self._context)
        write_context(both, self.drafter.frequencies(both.device), self._key_norms, self.config.rms_norm_eps, cache, lengths)

    def __call__(self, block: Tensor, positions: Tensor, cache: Tensor, visible: list[Rows]) -> Tensor:
        """``block`` embeddings ``[batch, rows, hidden]`` behind ``cache`` -> hidden states before the final norm."""
        rope = self.drafter.rope(positions, block.dtype)
        *_, hidden = over_caches(self.layers, block, rope, *cache.unbind(1), visible)
        return hidden

    def logits(self, hidden: Tensor, head) -> Tensor:
        """``[..., hidden]`` before the final norm -> ``[..., vocab]`` by the target's ``head``."""
        return norm_linear(hidden, self._norm, head)


def _weights(layer: Layer, heads: int) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    return LayerWeights(
        heads=heads,
        attention_norm=layer.input_layernorm,
        qkv=side_by_side(attention.q_proj, attention.k_proj, attention.v_proj),
        q_norm=attention.q_norm,
        k_norm=attention.k_norm,
        out=attention.o_proj,
        mlp_norm=layer.post_attention_layernorm,
        gate_up=side_by_side(mlp.gate_proj, mlp.up_proj),
        down=mlp.down_proj,
    )
