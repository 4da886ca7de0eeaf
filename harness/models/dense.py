"""Llama and Qwen3 dense transformers: one module for both, with a cache that takes trees of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from harness.models.config import ModelConfig
from harness.models.layer_cache import AttentionCache, ModelCache
from kernels import Rows, attention, linear_add, norm_linear, norm_swiglu, over_caches, rope_frequencies, rope_tables, rotate, write_rows


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """RoPE frequencies ``[head_dim / 2]`` in fp32, rescaled for long contexts the Llama-3 way if the config says so."""
    frequencies = rope_frequencies(config.rope_theta, config.head_dim, torch.device("cpu"))
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_context * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


class Layer(nn.Module):
    """Pre-norm attention and gated MLP. Projections that share an input are one matrix: fewer, larger products."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.attention_norm = nn.RMSNorm(hidden, eps)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim, eps) if config.qk_norm else None
        self.out = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden, eps)
        self.gate_up = nn.Linear(hidden, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, hidden, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: AttentionCache | None, start: Tensor | None) -> Tensor:
        """A prefill: causal over the rows alone, which go into ``cache`` behind ``start``."""
        qkv = norm_linear(x, self.attention_norm, self.qkv)
        queries, keys, values = rotate(qkv, rope, self.heads, self.kv_heads, self.q_norm, self.k_norm)
        if cache is not None:
            write_rows(cache.keys, start, keys)
            write_rows(cache.values, start, values)
        x, scaled = linear_add(attention(queries, keys, values, None, causal=x.shape[1] > 1), self.out, x, self.mlp_norm)
        return linear_add(norm_swiglu(x, self.mlp_norm, self.gate_up, scaled), self.down, x)[0]


class DenseModel(nn.Module):
    """Embedding, layers, final norm, head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.embed.weight
        self.register_buffer("frequencies", inverse_frequencies(config), persistent=False)

    def new_cache(self, batch: int, capacity: int) -> ModelCache:
        """An empty cache of ``capacity`` positions a request, a round's losing rows included."""
        c, weight = self.config, self.embed.weight
        shape = (c.num_layers, 2, batch, c.num_kv_heads, capacity, c.head_dim)
        return ModelCache(torch.zeros(shape, dtype=weight.dtype, device=weight.device))

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: ModelCache | None = None,
        visible: Rows | None = None,
        taps: tuple[int, ...] = (),
    ) -> tuple[Tensor, Tensor]:
        """One pass over ``tokens`` ``[batch, rows]`` at ``positions`` ``[batch, rows]``.

        ``visible`` None: causal over these rows alone, as in a prefill. ``Rows``: over the cache. Either way rows are
        written behind the committed positions; only ``cache.keep`` commits them.
        Returns hidden states before the final norm ``[batch, rows, hidden]`` and the outputs of the layers ``taps``
        side by side ``[batch, rows, len(taps) * hidden]``. ``logits`` turns the former into logits.
        """
        x = self.embed(tokens)
        rope = rope_tables(positions, self.frequencies, x.dtype)
        tapped = {}
        for i, x in enumerate(self._passed(x, rope, cache, visible)):
            if i in taps:
                tapped[i] = x
        features = torch.cat([tapped[i] for i in taps], dim=-1) if taps else x.new_empty(*x.shape[:2], 0)
        return x, features

    def _passed(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: ModelCache | None, visible: Rows | None) -> Iterator[Tensor]:
        """The output of each layer."""
        if visible is not None:
            yield from over_caches(self.layers, x, rope, cache.keys, cache.values, [visible] * len(self.layers))
            return
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, None if cache is None else cache.layers[i], None if cache is None else cache.lengths)
            yield x

    def logits(self, hidden: Tensor) -> Tensor:
        """``[..., hidden]`` before the final norm -> ``[..., vocab]``."""
        return norm_linear(hidden, self.norm, self.head)


def build(config: ModelConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device | str) -> DenseModel:
    """A model from tensors with Hugging Face names, ready for inference."""
    with torch.device("meta"):
        model = DenseModel(config)
    state = {"embed.weight": tensors["model.embed_tokens.weight"], "norm.weight": tensors["model.norm.weight"]}
    if not config.tied_head:
        state["head.weight"] = tensors["lm_head.weight"]
    for i in range(config.num_layers):
        source, ours = f"model.layers.{i}.", f"layers.{i}."
        attn, mlp = source + "self_attn.", source + "mlp."
        state[ours + "attention_norm.weight"] = tensors[source + "input_layernorm.weight"]
        state[ours + "qkv.weight"] = torch.cat([tensors[f"{attn}{name}_proj.weight"] for name in "qkv"])
        state[ours + "out.weight"] = tensors[attn + "o_proj.weight"]
        state[ours + "mlp_norm.weight"] = tensors[source + "post_attention_layernorm.weight"]
        state[ours + "gate_up.weight"] = torch.cat([tensors[f"{mlp}{name}_proj.weight"] for name in ("gate", "up")])
        state[ours + "down.weight"] = tensors[mlp + "down_proj.weight"]
        if config.qk_norm:
            state[ours + "q_norm.weight"] = tensors[attn + "q_norm.weight"]
            state[ours + "k_norm.weight"] = tensors[attn + "k_norm.weight"]
    state = {name: tensor.to(device=device, dtype=dtype) for name, tensor in state.items()}
    if config.tied_head:
        state["head.weight"] = state["embed.weight"]
    model.load_state_dict(state, assign=True)
    if config.tied_head:
        model.head.weight = model.embed.weight
    model.frequencies = inverse_frequencies(config).to(device)
    return model.eval().requires_grad_(False)
