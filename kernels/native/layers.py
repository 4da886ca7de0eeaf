"""Linear layers, decoder layers over a cache and the likeliest tokens through the C kernels: bf16, on a CPU, without gradients.

A row's outputs never depend on the rows beside it, and its attention goes through its own sequence in order, wherever in a draft
tree the row lies: verified in a tree or decoded alone, it gives the same numbers to the last bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from kernels.native.library import library, products
from kernels.rows import Rows

TILE, STEP = 16, 32  # outputs and inputs of a tile of weights
HEAD_DIMS, MOST_GROUPED = range(32, 257, 32), 32  # sizes of a head; query heads that share a key-value head

_library: ctypes.PyDLL | None = None


def use(folder: Path | None) -> str | None:
    """Let ``packed`` make layers of this kind from now on, of kernels compiled into ``folder``; ``None``: no longer.

    Returns why there are none, or ``None``.
    """
    global _library
    found = "they are switched off" if folder is None else library(folder)
    _library = None if isinstance(found, str) else found
    return found if isinstance(found, str) else None


class NativeLinear(nn.Module):
    """``nn.Linear`` without bias: the same product, its weight in the kernels' order alone."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        tiles = weight.detach().view(self.out_features // TILE, TILE, self.in_features // 2, 2).transpose(1, 2)
        self.tiles = tiles.contiguous()
        self._library = _library

    def forward(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        """``x`` ``[..., in_features]``, normed first where there is a norm -> ``[..., out_features]``."""
        if x.dtype is not torch.bfloat16 or x.shape[-1] != self.in_features:
            raise ValueError(f"rows of {x.shape[-1]} numbers of {x.dtype}: the layer takes {self.in_features} of torch.bfloat16")
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self.out_features)
        weight, eps = (None, 0.0) if norm is None else (norm.weight.data_ptr(), epsilon(norm))
        rows = x.numel() // self.in_features
        self._library.linear(
            x.data_ptr(), weight, eps, rows, self.in_features, self.out_features, self.tiles.data_ptr(), out.data_ptr(), torch.get_num_threads()
        )
        return out

    @property
    def products(self) -> str:
        """What multiplies."""
        return products(self._library)

    @property
    def place(self) -> tuple[int, int]:
        """Address and size [byte] of the weight."""
        return self.tiles.data_ptr(), self.tiles.nbytes


def takes(weight: Tensor) -> bool:
    """Whether a linear layer with this ``weight`` ``[outputs, inputs]`` becomes a ``NativeLinear``."""
    outputs, inputs = weight.shape
    return _library is not None and weight.dtype is torch.bfloat16 and not outputs % TILE and not inputs % STEP


def candidates(logits: Tensor, width: int) -> tuple[Tensor, Tensor] | None:
    """``kernels.tree.ranked_candidates`` of ``logits`` ``[rows, vocab]``; ``None``: not of these."""
    if _library is None or logits.dtype is not torch.bfloat16 or logits.device.type != "cpu":
        return None
    rows, vocab = logits.shape
    logits = logits.contiguous()
    ids = torch.empty(rows, width, dtype=torch.int64)
    logprobs = torch.empty(rows, width)
    _library.candidates(logits.data_ptr(), rows, vocab, width, ids.data_ptr(), logprobs.data_ptr(), torch.get_num_threads())
    return logprobs, ids


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("heads", "kv_heads", "dim", "hidden", "inner")),
        *((name, ctypes.c_float) for name in ("eps", "head_eps")),
        *((name, ctypes.c_void_p) for name in ("attention_norm", "q_norm", "k_norm", "mlp_norm", "qkv", "out", "gate_up", "down")),
    ]


def decoder_layers(
    layers: Sequence, x: Tensor, rope: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, rows: Sequence[Rows]
) -> Sequence[Tensor] | None:
    """What ``kernels.over_caches`` yields, in one call; ``None``: these layers are not made of ``NativeLinear``s, or this is no
    cache, or are no rows, of the kind that the kernel takes: the same for every layer, without a window."""
    lengths, mask = rows[0].lengths, rows[0].mask
    if not isinstance(layers[0].qkv, NativeLinear):
        return None
    if not all(seen.window is None and seen.lengths is lengths and seen.mask is mask for seen in rows):
        return None
    if keys.stride() != values.stride() or keys.stride()[3:] != (keys.shape[-1], 1):
        return None
    described = [_described(layer, *keys.shape[2::2]) for layer in layers]
    if not all(described):
        return None
    if not x.dtype == keys.dtype == values.dtype == torch.bfloat16:
        raise ValueError(f"rows of {x.dtype} over a cache of {keys.dtype} and {values.dtype}: the layers take torch.bfloat16")
    if (longest := int(lengths.max()) + x.shape[1]) > keys.shape[3]:
        raise ValueError(f"{longest} positions do not fit a cache for {keys.shape[3]}")
    x, lengths, mask = x.contiguous(), lengths.contiguous(), None if mask is None else mask.contiguous()
    outputs = x.new_empty(len(layers), *x.shape)
    cos, sin = (table.expand(len(x), -1, -1, -1).contiguous() for table in rope)
    places = (ctypes.c_void_p * len(layers))(*map(ctypes.addressof, described))
    layers[0].qkv._library.decoder_layers(
        places, len(layers), x.data_ptr(), outputs.data_ptr(), len(x), x.shape[1], cos.data_ptr(), sin.data_ptr(), keys.data_ptr(),
        values.data_ptr(), *keys.stride()[:3], lengths.data_ptr(), None if mask is None else mask.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return outputs.unbind()


def _described(layer, kv_heads: int, dim: int) -> _Layer | None:
    """What the kernel reads of ``layer``, kept with it; None where one of its parts is not of the kind that it takes."""
    if not hasattr(layer, "_native"):
        object.__setattr__(layer, "_native", _describe(layer, kv_heads, dim))
    return layer._native


def _describe(layer, kv_heads: int, dim: int) -> _Layer | None:
    linears = (layer.qkv, layer.out, layer.gate_up, layer.down)
    if dim not in HEAD_DIMS or layer.heads // kv_heads > MOST_GROUPED or not all(isinstance(linear, NativeLinear) for linear in linears):
        return None
    heads = (layer.q_norm, layer.k_norm)
    norms = [None if norm is None else norm.weight.data_ptr() for norm in (layer.attention_norm, *heads, layer.mlp_norm)]
    eps = (epsilon(layer.attention_norm), 0.0 if layer.q_norm is None else epsilon(layer.q_norm))
    places = [linear.tiles.data_ptr() for linear in linears]
    return _Layer(layer.heads, kv_heads, dim, layer.qkv.in_features, layer.down.in_features, *eps, *norms, *places)


def epsilon(norm: nn.Module) -> float:
    return torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
