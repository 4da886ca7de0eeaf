"""One step's verification: which rows of vLLM's flat batch are whose tree. The host knows where they lie, the device what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import row_mask


@dataclass(frozen=True)
class Planned:
    """A request's rows in this step: a tree's, or the one row behind which it gets a token (``is_tree`` false).

    ``start`` is the first of ``rows`` rows in the flat batch, ``first`` in the step's logits, ``base`` its position.
    """

    name: str
    start: int
    first: int
    base: int
    rows: int
    is_tree: bool


class Step:
    """All requests of a step as rectangles ``[requests, widest]`` on the device, int64, sent there in one copy; of a step that is
    trees of ``widest`` rows alone nothing is sent.

    ``at`` and ``logits_at`` say which rows of the flat batch and of the logits are a request's, ``linear`` the positions
    one after another; behind a request's own rows its last stands again, unless they are ``even``: all have ``widest`` rows.
    ``starts``, ``bases`` and ``counts`` ``[requests]``; ``counts`` is 0 for what is no tree. ``tokens``, ``parents`` (-1 behind
    a tree) and ``depths`` are the trees'. The walk fills ``path`` ``[requests, longest]``, ``kept`` and ``bonus`` ``[requests]``.
    """

    path: Tensor
    kept: Tensor
    bonus: Tensor

    def __init__(self, requests: Sequence[Planned], trees: Sequence[Tensor], tokens: int, positions: Tensor) -> None:
        """``trees`` int64 ``[3, rows]`` each: tokens, parents and depths as they were grown, perhaps more rows than are left.

        ``positions`` int64, at least ``[tokens]``, on the device: one after another, as vLLM has given them out.
        """
        self.requests = requests
        self.widest = max(request.rows for request in requests)
        self.has_trees = any(request.is_tree for request in requests)
        self.even = min(request.rows for request in requests) == self.widest
        self.only_trees = sum(request.rows for request in requests if request.is_tree) == tokens
        columns = torch.stack([_of_width(tree, self.widest) for tree in trees], dim=1)
        if self.even and self.only_trees:
            self.starts, self.counts, self.at = _side_by_side(len(requests), self.widest, positions.device)
            self.logits_at = self.at
            self.linear = positions[:tokens].clone().view(len(requests), self.widest)
            self.bases = self.linear[:, 0].contiguous()
        else:
            within = self._send(positions.device)
            columns = columns.gather(2, within.expand(3, -1, -1))
            columns[1].masked_fill_(within < torch.arange(self.widest, device=positions.device), -1)
        self.tokens, self.parents, self.depths = columns

    def _send(self, device: torch.device) -> Tensor:
        """Where the requests' rows lie, for ``self``; returns their numbers within their request ``[requests, widest]``."""
        told = [(r.start, r.base, r.rows * r.is_tree, r.first, r.rows) for r in self.requests]
        starts, bases, counts, firsts, rows = np.array(told, dtype=np.int64).T
        within = np.minimum(np.arange(self.widest), rows[:, None] - 1)
        rectangles = [within, starts[:, None] + within, firsts[:, None] + within, bases[:, None] + within]
        batch = len(told)
        # Each of these begins at a multiple of 16 bytes, whatever the batch: what kernels are compiled for.
        of_requests = np.zeros((3, batch + batch % 2), dtype=np.int64)
        of_requests[:, :batch] = starts, bases, counts
        sent = to_device(np.concatenate([part.ravel() for part in (of_requests, *rectangles)]), device)
        self.starts, self.bases, self.counts = sent[: of_requests.size].view(3, -1)[:, :batch]
        within, self.at, self.logits_at, self.linear = sent[of_requests.size :].view(4, batch, self.widest)
        return within

    @cached_property
    def mask(self) -> Tensor:
        """Who sees whom of the trees' rows, as ``row_mask`` gives it; behind a tree a row sees itself."""
        return row_mask(self.parents)


@cache
def _side_by_side(batch: int, rows: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Starts, counts and rows of requests that have ``rows`` rows each: the same at every step, for nobody to write to."""
    at = torch.arange(batch * rows, device=device).view(batch, rows)
    return at[:, 0].contiguous(), torch.full((batch,), rows, device=device), at


def _of_width(tree: Tensor, widest: int) -> Tensor:
    return tree[:, :widest] if tree.shape[1] >= widest else F.pad(tree, (0, widest - tree.shape[1]))


def to_device(numbers: np.ndarray, device: torch.device) -> Tensor:
    """Without waiting for it, where the device is another than the host."""
    tensor = torch.from_numpy(numbers)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def shapes(depths: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Depth and width (the most nodes at one depth) of trees with these ``depths`` ``[rows]`` each; one read-back for all."""
    if not depths:
        return []
    told = (tree.tolist()[1:] for tree in torch.cat(list(depths)).cpu().split([len(tree) for tree in depths]))
    return [(max(nodes), max(map(nodes.count, set(nodes)))) if nodes else (0, 0) for nodes in told]
