"""Caches of keys and values: where new rows go, and how an accepted path becomes context."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.device import on_gpu


def write_rows(caches: Tensor, lengths: Tensor, new: Tensor) -> None:
    """Write ``new`` ``[..., batch, kv_heads, rows, head_dim]`` into ``caches`` ``[..., batch, kv_heads, capacity, head_dim]``,
    row i of request b at ``lengths[b] + i`` (int64 ``[batch]``)."""
    rows = new.shape[-2]
    if on_gpu(caches):
        positions = lengths[:, None] + torch.arange(rows, device=caches.device)
        requests = torch.arange(len(lengths), device=caches.device)[:, None]
        by_position = caches.movedim((-4, -2), (0, 1))
        by_position[requests, positions] = new.movedim((-4, -2), (0, 1))
        return
    for request, start in enumerate(lengths.tolist()):
        caches.select(-4, request).narrow(-2, start, rows).copy_(new.select(-4, request))


def keep_rows(caches: Tensor, lengths: Tensor, path: Tensor) -> None:
    """After acceptance: move rows ``lengths + path`` to ``lengths, lengths + 1, …`` in place; what lies behind is free again.

    ``caches`` ``[..., batch, kv_heads, capacity, head_dim]``, of all layers at once; ``lengths`` int64 ``[batch]``; ``path``
    ``[batch, longest]``, ascending rows of the round, ``path[b, i] >= i``.
    """
    if on_gpu(caches):
        from kernels.triton_kernels.commit import keep_rows as move

        move(caches, lengths, path)
        return
    for request, (start, rows) in enumerate(zip(lengths.tolist(), path.tolist(), strict=True)):
        stays = next((place for place, row in enumerate(rows) if place != row), len(rows))
        if stays < len(rows):
            own = caches[..., request, :, :, :]
            moved = own.index_select(-2, start + path[request, stays:])
            own[..., start + stays : start + len(rows), :] = moved
