"""What a round gave each request: the accepted tokens, and the record that the host reads of it."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.device import on_gpu

TOLD = 4
"""Numbers of a report before its tokens: rows kept, nodes, depth and width of the tree."""


def settle(
    tokens: Tensor, depths: Tensor, path: Tensor, kept: Tensor, bonus: Tensor, lengths: Tensor, reach: int,
    given: Tensor, last: Tensor, report: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """End a round whose trees are ``tokens`` and ``depths`` ``[batch, rows]`` and whose walk gave ``path``, ``kept`` and ``bonus``
    (``kernels.accepted_path``). Returns the path's tokens ``[batch, longest]`` and the rows that are kept of it ``[batch]``.

    A request with more than ``reach`` positions committed, of ``lengths`` ``[batch]``, keeps none: it stands still.
    Written, all int64: ``given`` ``[batch]`` counts the tokens of a request, ``last`` ``[batch]`` becomes the bonus token, and
    ``report`` ``[batch, TOLD + at least longest]`` says what ``TOLD`` lists (the width is the most nodes at one depth) and
    then the kept - 1 accepted tokens and the bonus token; what follows them means nothing.
    """
    if on_gpu(tokens):
        from kernels.triton_kernels import outcome as kernel

        return kernel.settle(tokens, depths, path, kept, bonus, lengths, reach, given, last, report)
    kept = torch.where(lengths <= reach, kept, 0)
    accepted = tokens.gather(1, path)
    nodes_at = torch.zeros_like(depths).scatter_add_(1, depths, torch.ones_like(depths))
    nodes_at[:, 0] = 0
    columns = (kept, torch.full_like(kept, tokens.shape[1] - 1), depths.amax(dim=1), nodes_at.amax(dim=1))
    report[:, :TOLD] = torch.stack(columns, dim=1)
    longest = path.shape[1]
    shifted = torch.cat([accepted[:, 1:], bonus[:, None]], dim=1)
    report[:, TOLD : TOLD + longest] = shifted.scatter(1, (kept[:, None] - 1).clamp(min=0), bonus[:, None])
    given += kept
    last.copy_(bonus)
    return accepted, kept
