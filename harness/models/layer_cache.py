"""State of a target between rounds: one interface, two kinds of layer.

A round calls every layer once with the rows of its draft trees, then ``keep`` once with the accepted paths.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import keep_rows


class AttentionCache:
    """Keys and values ``[batch, kv_heads, capacity, head_dim]`` of one layer. Rows of a round lie behind the committed ones.

    Both begin as zeros: a request's places behind its own rows are masked, and what is masked must be finite.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values


class RecurrentCache:
    """A state that cannot be cropped, ``[batch, ...]``. The layer leaves one state a row; the last accepted row's stays.

    ``row_states`` ``[batch, rows, ...]``: row i's state was computed from its parent's, the root's from ``state``.
    """

    def __init__(self, state: Tensor) -> None:
        self.state = state
        self.row_states: Tensor | None = None

    def keep(self, path: Tensor, kept: Tensor) -> None:
        requests = torch.arange(len(path), device=path.device)
        last = path[requests, (kept - 1).clamp(min=0)]
        chosen = self.row_states[requests, last]
        goes_on = (kept > 0).view(-1, *[1] * (chosen.dim() - 1))
        self.state = torch.where(goes_on, chosen, self.state)
        self.row_states = None


class ModelCache:
    """All layers' caches, and how many positions of each request are committed: ``lengths`` int64 ``[batch]``, on the device.

    ``attention`` holds keys and values of all attention layers, ``[layers, 2, batch, kv_heads, capacity, head_dim]``, so
    that a path is kept in all of them at once.
    """

    def __init__(self, attention: Tensor, recurrent: Sequence[RecurrentCache] = ()) -> None:
        self.attention, self.recurrent = attention, recurrent
        self.keys, self.values = attention.unbind(1)
        self.layers = [AttentionCache(*layer) for layer in attention]
        self.lengths = torch.zeros(attention.shape[2], dtype=torch.int64, device=attention.device)

    def keep(self, path: Tensor, kept: Tensor) -> None:
        """Commit the first ``kept`` ``[batch]`` of the rows ``path`` ``[batch, longest]`` (``kernels.accepted_path``)."""
        if path.shape[1] > 1:  # a root is where it belongs
            keep_rows(self.attention, self.lengths, path)
        for layer in self.recurrent:
            layer.keep(path, kept)
        self.lengths += kept

    def of(self, requests: Tensor) -> ModelCache:
        """A copy that holds some of the requests, ``requests`` a mask or indices. Attention layers alone."""
        chosen = ModelCache(self.attention[:, :, requests])
        chosen.lengths.copy_(self.lengths[requests])
        return chosen

    def clear(self) -> None:
        self.lengths.zero_()
