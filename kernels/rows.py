"""The new rows of a pass over a cache: where they lie, and what they may see."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernels.device import on_gpu
from kernels.masks import ancestor_mask


@dataclass(frozen=True)
class Rows:
    """Row i of request b lies in the cache at ``lengths[b] + i``, behind the committed positions, all of which it sees.

    ``lengths`` int64 ``[batch]``, on the device: the same for every layer, never read by the host on a GPU.
    ``mask`` says which of the new rows see which, as ``row_mask`` gives it; None: every row sees every row.
    ``window``: a row sees only positions closer than that to its own, its own being ``lengths[b] + i``.
    One pass, one object: off the GPU the first layer reads what the others then have at hand.
    """

    lengths: Tensor
    mask: Tensor | None = None
    window: int | None = None

    @cached_property
    def longest(self) -> int:
        """The most committed positions of a request, read by the host."""
        return int(self.lengths.max())

    @cached_property
    def _biases(self) -> dict[tuple[int, torch.dtype], Tensor | None]:
        return {}

    def bias(self, new: int, dtype: torch.dtype) -> Tensor | None:
        """0 where one of ``new`` rows sees a position, else -inf: ``[batch, 1, new, longest + new]``; None: all see all."""
        if (new, dtype) not in self._biases:
            visible = visible_columns(self, new, self.longest + new)
            self._biases[new, dtype] = None if visible is None else _bias(visible[:, None], dtype)
        return self._biases[new, dtype]


def _bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


def row_mask(parents: Tensor) -> Tensor:
    """Who sees whom in trees with these ``parents`` ``[batch, rows]``, in the form that the device's attention reads."""
    if on_gpu(parents):
        from kernels.triton_kernels.masks import ancestor_bits

        return ancestor_bits(parents)
    return ancestor_mask(parents)


def causal_mask(batch: int, rows: int, device) -> Tensor:
    """``row_mask`` of chains."""
    return row_mask(torch.arange(-1, rows - 1, device=device).expand(batch, -1).contiguous())


def visible_columns(rows: Rows, new: int, longest: int) -> Tensor | None:
    """Bool ``[batch, new, longest]``: what each of ``new`` rows sees of the first ``longest`` positions; None: all of them.

    For the reference; ``mask`` must be bool ``[batch, new, new]``.
    """
    whole = rows.lengths.tolist()
    if rows.mask is None and rows.window is None and all(length + new == longest for length in whole):
        return None
    columns = torch.arange(longest, device=rows.lengths.device)
    visible = (columns < rows.lengths[:, None])[:, None].repeat(1, new, 1)
    for request, length in enumerate(whole):
        visible[request, :, length : length + new] = True if rows.mask is None else rows.mask[request]
    if rows.window is not None:
        own = rows.lengths[:, None] + torch.arange(new, device=columns.device)
        visible &= (own[:, :, None] - columns).abs() < rows.window
    return visible
