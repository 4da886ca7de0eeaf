"""The parts that targets and drafters share: rotary position embedding, and products with what stands around them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.cache import write_rows


def rope_tables(positions: Tensor, inverse_frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each ``[batch, 1, rows, head_dim]``, for ``positions`` ``[batch, rows]``; computed in fp32."""
    angles = positions[:, None, :, None].float() * inverse_frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` ``[batch, heads, rows, head_dim]``; first half paired with second half (the Hugging Face layout)."""
    turned = x * cos
    half = x.shape[-1] // 2
    (first, second), sin = x.chunk(2, dim=-1), sin.narrow(-1, 0, half)
    turned.narrow(-1, 0, half).addcmul_(second, sin, value=-1)
    turned.narrow(-1, half, half).addcmul_(first, sin)
    return turned


def swiglu(gate_and_up: Tensor) -> Tensor:
    """silu(gate) * up for ``[..., 2 * intermediate]``, gate first."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def norm_linear(x: Tensor, norm: nn.RMSNorm, linear: nn.Linear) -> Tensor:
    """``linear(norm(x))``."""
    return linear(norm(x))


def linear_add(x: Tensor, linear: nn.Linear, residual: Tensor) -> Tensor:
    """``residual + linear(x)``."""
    return residual + linear(x)


def norm_swiglu(x: Tensor, norm: nn.RMSNorm, gate_up: nn.Linear) -> Tensor:
    """silu(gate) * up, both products of ``norm(x)`` with one matrix, gate first."""
    return swiglu(gate_up(norm(x)))


def rotate(
    qkv: Tensor, rope: tuple[Tensor, Tensor], heads: int, kv_heads: int, q_norm: nn.RMSNorm | None, k_norm: nn.RMSNorm | None
) -> tuple[Tensor, Tensor, Tensor]:
    """``qkv`` ``[batch, rows, (heads + 2 * kv_heads) * head_dim]`` -> queries, keys, values ``[batch, heads, rows, head_dim]``,
    the first two normed per head where a norm is given, then rotated."""
    batch, rows, _ = qkv.shape
    split = qkv.view(batch, rows, heads + 2 * kv_heads, -1).transpose(1, 2)
    turned = split[:, : heads + kv_heads]
    if q_norm is not None:
        turned = torch.cat([q_norm(turned[:, :heads]), k_norm(turned[:, heads:])], dim=1)
    turned = apply_rope(turned, *rope)
    return turned[:, :heads], turned[:, heads:], split[:, heads + kv_heads :]


def rotate_into(
    qkv: Tensor, rope: tuple[Tensor, Tensor], heads: int, q_norm, k_norm, keys: Tensor, values: Tensor, lengths: Tensor
) -> Tensor:
    """``rotate``; keys and values go into caches ``[batch, kv_heads, capacity, head_dim]`` behind ``lengths``; returns queries."""
    queries, new_keys, new_values = rotate(qkv, rope, heads, keys.shape[1], q_norm, k_norm)
    write_rows(keys, lengths, new_keys)
    write_rows(values, lengths, new_values)
    return queries
