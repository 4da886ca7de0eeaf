"""Which rows of a draft tree may see which: a row sees its ancestors and itself."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def ancestor_mask(parents: Tensor) -> Tensor:
    """``parents`` ``[batch, rows]``, the root's -1, parents before children -> bool ``[batch, rows, rows]``.

    Entry (i, j) is true when row j lies on the path from the root to row i, ends included.
    """
    batch, rows = parents.shape
    above = parents.cpu().numpy()
    mask = np.zeros((batch, rows, rows), dtype=bool)
    mask[:, range(rows), range(rows)] = True
    requests = np.arange(batch)
    for row in range(1, rows):
        mask[:, row] |= mask[requests, above[:, row]]
    return torch.from_numpy(mask).to(parents.device)
