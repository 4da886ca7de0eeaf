"""Per-layer state of a target between rounds: one interface, two kinds.

A round calls every layer once with the rows of its draft tree, then ``keep`` once with the accepted path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from kernels import keep_rows


class LayerCache(ABC):
    """What one layer remembers of the committed context."""

    @abstractmethod
    def keep(self, start: int, path: Tensor) -> None:
        """Commit the rows ``path`` ``[batch, kept]`` of the round that began behind ``start`` positions; drop the rest."""


class AttentionCache(LayerCache):
    """Keys and values ``[batch, kv_heads, capacity, head_dim]``. Rows of a round are appended; losers are overwritten."""

    def __init__(self, batch: int, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype, device) -> None:
        self.keys = torch.empty(batch, kv_heads, capacity, head_dim, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)

    def append(self, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows ``[batch, kv_heads, rows, head_dim]`` behind ``start`` positions; returns all up to there."""
        end = start + keys.shape[2]
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        return self.keys[:, :, :end], self.values[:, :, :end]

    def keep(self, start: int, path: Tensor) -> None:
        keep_rows(self.keys, start, path)
        keep_rows(self.values, start, path)


class RecurrentCache(LayerCache):
    """A state that cannot be cropped, ``[batch, ...]``. The layer leaves one state a row; the last accepted row's stays.

    ``row_states`` ``[batch, rows, ...]``: row i's state was computed from its parent's, the root's from ``state``.
    """

    def __init__(self, state: Tensor) -> None:
        self.state = state
        self.row_states: Tensor | None = None

    def keep(self, start: int, path: Tensor) -> None:
        requests = torch.arange(len(path), device=path.device)
        self.state = self.row_states[requests, path[:, -1]]
        self.row_states = None


class ModelCache:
    """All layers' caches and how many positions are committed (the same for every request of the batch)."""

    def __init__(self, layers: list[LayerCache]) -> None:
        self.layers = layers
        self.length = 0

    def keep(self, path: Tensor) -> None:
        """Commit the accepted rows of the round, ``path`` ``[batch, kept]``; a path that is a prefix needs no move."""
        kept = path.shape[1]
        moved = not torch.equal(path, torch.arange(kept, device=path.device).expand_as(path))
        for layer in self.layers:
            if moved or not isinstance(layer, AttentionCache):
                layer.keep(self.length, path)
        self.length += kept
