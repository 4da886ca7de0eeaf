"""Which rows of a draft tree may see which: a row sees its ancestors and itself."""

from __future__ import annotations

import torch
from torch import Tensor


def ancestor_mask(parents: Tensor) -> Tensor:
    """``parents`` ``[batch, rows]``, the root's -1, parents before children -> bool ``[batch, rows, rows]``.

    Entry (i, j) is true when row j lies on the path from the root to row i, ends included.
    """
    batch, rows = parents.shape
    mask = torch.eye(rows, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    ancestor = parents
    while bool((ancestor >= 0).any()):
        inside = ancestor >= 0
        mask |= torch.nn.functional.one_hot(ancestor.clamp(min=0), rows).bool() & inside[..., None]
        ancestor = torch.where(inside, parents.gather(1, ancestor.clamp(min=0)), ancestor)
    return mask
