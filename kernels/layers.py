"""The parts that targets and drafters share: rotary position embedding, and products with what stands around them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.cache import write_rows
from kernels.device import on_gpu
from kernels.native.layers import NativeLinear

if TYPE_CHECKING:
    from kernels.triton_kernels.few_rows import Scaled


@cache
def rope_frequencies(theta: float, head_dim: int, device: torch.device) -> Tensor:
    """Plain RoPE's inverse frequencies ``[head_dim / 2]`` in fp32, made once: they are not to be written."""
    with torch.inference_mode(False):
        return 1.0 / theta ** (torch.arange(0, head_dim, 2, device=device).float() / head_dim)


def rope_tables(positions: Tensor, inverse_frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each ``[batch, 1, rows, head_dim]``, for ``positions`` ``[batch, rows]``; computed in fp32."""
    if on_gpu(positions) and not torch.is_grad_enabled():
        from kernels.triton_kernels import rope

        return rope.rope_tables(positions, inverse_frequencies, dtype)
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


def norm_linear(x: Tensor, norm: nn.RMSNorm, linear: nn.Linear, scaled: Scaled | None = None) -> Tensor:
    """``linear(norm(x))``; ``scaled`` is what ``linear_add`` made of ``x`` for this norm, if it did."""
    if _fused(x, linear):
        from kernels.triton_kernels import few_rows

        return few_rows.norm_linear(x, norm.weight, norm.eps, linear.weight, scaled)
    return linear(x, norm) if isinstance(linear, NativeLinear) else linear(norm(x))


def linear_add(
    x: Tensor, linear: nn.Linear, residual: Tensor, following: nn.RMSNorm | None = None
) -> tuple[Tensor, Scaled | None]:
    """``residual + linear(x)``, and what spares the norm that follows some work."""
    if _fused(x, linear):
        from kernels.triton_kernels import few_rows

        return few_rows.linear_add(x, linear.weight, residual, None if following is None else following.weight)
    return residual + linear(x), None


def norm_swiglu(x: Tensor, norm: nn.RMSNorm, gate_up: nn.Linear, scaled: Scaled | None = None) -> Tensor:
    """silu(gate) * up, both products of ``norm(x)`` with one matrix, gate first; ``scaled`` as for ``norm_linear``."""
    if _fused(x, gate_up):
        from kernels.triton_kernels import few_rows

        return few_rows.norm_swiglu(x, norm.weight, norm.eps, gate_up.weight, scaled)
    return swiglu(norm_linear(x, norm, gate_up))


def _fused(x: Tensor, linear: nn.Linear) -> bool:
    """Whether a product of ``x`` goes to the kernels for few rows: on a GPU, where nothing learns."""
    if not on_gpu(x) or torch.is_grad_enabled() and (x.requires_grad or linear.weight.requires_grad):
        return False
    from kernels.triton_kernels import few_rows

    return few_rows.suits(x, linear.weight)


def norms_side_by_side(first: Tensor, second: Tensor, first_norm: nn.RMSNorm, second_norm: nn.RMSNorm) -> Tensor:
    """``[..., width]`` twice, each normed by its own -> ``[..., 2 * width]``."""
    if on_gpu(first) and not torch.is_grad_enabled():
        from kernels.triton_kernels import norms

        return norms.norms_side_by_side(first, second, (first_norm.weight, second_norm.weight), (first_norm.eps, second_norm.eps))
    return torch.cat([first_norm(first), second_norm(second)], dim=-1)


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


def weights_and_eps(q_norm, k_norm) -> tuple[Tensor | None, Tensor | None, float]:
    """Of the norms of queries and keys, which have one eps; nothing of a model without them."""
    return (None, None, 0.0) if q_norm is None else (q_norm.weight, k_norm.weight, q_norm.eps)


def rotate_into(
    qkv: Tensor, rope: tuple[Tensor, Tensor], heads: int, q_norm, k_norm, keys: Tensor, values: Tensor, lengths: Tensor
) -> Tensor:
    """``rotate``; keys and values go into caches ``[batch, kv_heads, capacity, head_dim]`` behind ``lengths``; returns queries."""
    if on_gpu(qkv):
        from kernels.triton_kernels import rotate as kernel

        return kernel.rotate_into(qkv, *rope, heads, *weights_and_eps(q_norm, k_norm), keys, values, lengths)
    queries, new_keys, new_values = rotate(qkv, rope, heads, keys.shape[1], q_norm, k_norm)
    write_rows(keys, lengths, new_keys)
    write_rows(values, lengths, new_values)
    return queries


def write_context(both: Tensor, frequencies: Tensor, norms: Tensor, eps: float, cache: Tensor, lengths: Tensor) -> None:
    """Write keys and values of all layers, ``both`` ``[batch, rows, layers * 2 * kv_heads * head_dim]``, keys before values, behind
    ``lengths`` ``[batch]`` of ``cache`` ``[layers, 2, batch, kv_heads, capacity, head_dim]``.

    Keys are normed per head with their layer's of ``norms`` ``[layers, head_dim]``, then rotated by their positions.
    """
    if on_gpu(both):
        from kernels.triton_kernels import context

        context.write_context(both, frequencies, norms, eps, cache, lengths)
        return
    batch, rows, _ = both.shape
    layers, _, _, kv_heads, _, head_dim = cache.shape
    both = both.view(batch, rows, layers, 2, kv_heads, head_dim).permute(2, 3, 0, 4, 1, 5)
    keys = F.rms_norm(both[:, 0], (head_dim,), None, eps) * norms[:, None, None, None]
    positions = lengths[:, None] + torch.arange(rows, device=lengths.device)
    keys = apply_rope(keys, *rope_tables(positions, frequencies, both.dtype))
    write_rows(cache, lengths, torch.stack([keys, both[:, 1]], dim=1))
