"""A pre-norm decoder layer over a cache: the one road of every model's rounds, target and drafters alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from kernels.attention import rotated_attention
from kernels.layers import linear_add, norm_linear, norm_swiglu
from kernels.native import layers as native
from kernels.packed import packed
from kernels.rows import Rows


@dataclass(frozen=True)
class LayerWeights:
    """What ``over_caches`` reads of a layer. Projections that share an input are one matrix: fewer, larger products.

    On a CPU each is ``packed``.
    """

    heads: int
    attention_norm: nn.RMSNorm
    qkv: nn.Linear
    q_norm: nn.RMSNorm | None
    k_norm: nn.RMSNorm | None
    out: nn.Linear
    mlp_norm: nn.RMSNorm
    gate_up: nn.Linear
    down: nn.Linear

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, packed(getattr(self, field.name)))


def over_caches(
    layers: Sequence[LayerWeights], x: Tensor, rope: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, rows: Sequence[Rows]
) -> Iterator[Tensor]:
    """What each of ``layers`` makes of ``x`` ``[batch, rows, hidden]``, one after another, each behind what its part of ``keys`` and
    ``values`` ``[layers, batch, kv_heads, capacity, head_dim]`` holds, with its own of ``rows``.

    A layer is a ``LayerWeights`` or anything with its attributes. The rows' own keys and values are written behind
    ``rows.lengths``.
    """
    if (outputs := native.decoder_layers(layers, x, rope, keys, values, rows)) is not None:
        yield from outputs
        return
    norms = [*(layer.attention_norm for layer in layers[1:]), None]
    scaled = None
    for layer, own_keys, own_values, seen, following in zip(layers, keys, values, rows, norms, strict=True):
        qkv = norm_linear(x, layer.attention_norm, layer.qkv, scaled)
        attended = rotated_attention(qkv, rope, layer.heads, layer.q_norm, layer.k_norm, own_keys, own_values, seen)
        x, scaled = linear_add(attended, layer.out, x, layer.mlp_norm)
        x, scaled = linear_add(norm_swiglu(x, layer.mlp_norm, layer.gate_up, scaled), layer.down, x, following)
        yield x


def over_cache(layer: LayerWeights, x: Tensor, rope: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, rows: Rows) -> Tensor:
    """``over_caches`` for one layer."""
    return next(over_caches([layer], x, rope, keys[None], values[None], [rows]))


def stacked(*linears: nn.Linear) -> nn.Linear:
    """One product for several of the same input, their outputs one after another; a copy of their weights."""
    weight = torch.cat([linear.weight for linear in linears]).detach()
    one = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    one.weight = nn.Parameter(weight, requires_grad=False)
    return one


def side_by_side(*linears: nn.Linear) -> nn.Linear:
    """``stacked``, and their weights become parts of its, so that nothing lies in memory twice."""
    one = stacked(*linears)
    for linear, part in zip(linears, one.weight.split([linear.out_features for linear in linears]), strict=True):
        linear.weight = nn.Parameter(part, requires_grad=False)
    return one
