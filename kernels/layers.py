"""The parts that targets and drafters share: rotary position embedding and the gated MLP's activation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rope_tables(positions: Tensor, inverse_frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each ``[batch, 1, rows, head_dim]``, for ``positions`` ``[batch, rows]``; computed in fp32."""
    angles = positions[:, None, :, None].float() * inverse_frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` ``[batch, heads, rows, head_dim]``; first half paired with second half (the Hugging Face layout)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def swiglu(gate_and_up: Tensor) -> Tensor:
    """silu(gate) * up for ``[..., 2 * intermediate]``, gate first."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return F.silu(gate) * up
