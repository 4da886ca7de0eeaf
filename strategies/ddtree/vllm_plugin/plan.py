"""One step's verification: which rows of vLLM's flat batch are whose tree, and what the walk made of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels import ancestor_mask


@dataclass(frozen=True)
class Grown:
    """A request's next tree as it was drafted, on the host; row 0 is the root, whose token vLLM has. Parents come first."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]

    @classmethod
    def chain(cls, drafted: list[int]) -> Grown:
        rows = range(len(drafted) + 1)
        return cls([-1, *drafted], [row - 1 for row in rows], list(rows))

    def cut(self, rows: int) -> Grown:
        """The first rows: whatever vLLM leaves off at the end, the rest is still a tree."""
        return Grown(self.tokens[:rows], self.parents[:rows], self.depths[:rows])

    @property
    def branches(self) -> bool:
        return any(parent != row - 1 for row, parent in enumerate(self.parents))

    @property
    def shape(self) -> tuple[int, int]:
        """Depth and width (the most nodes at one depth). Places that vLLM fills, token -1, are no nodes."""
        nodes = [depth for token, depth in zip(self.tokens[1:], self.depths[1:], strict=True) if token >= 0]
        return (max(nodes), max(map(nodes.count, set(nodes)))) if nodes else (0, 0)


@dataclass
class Verified:
    """One request's rows in this step: ``start`` in the flat batch, ``base`` their first position, ``index`` in the batch.

    ``path`` is filled by the walk: accepted rows from the root on.
    """

    index: int
    start: int
    base: int
    tree: Grown
    path: list[int] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.tree.tokens)

    def mask(self, device: torch.device) -> Tensor:
        """bool ``[1, rows, rows]``: a row sees its ancestors and itself."""
        return ancestor_mask(torch.tensor([self.tree.parents])).to(device)


@dataclass
class Step:
    """All requests of a step, and the trees among them whose rows need their own positions and mask."""

    requests: list[Verified]
    tokens: int

    @property
    def trees(self) -> list[Verified]:
        return [request for request in self.requests if request.tree.branches]

    @property
    def only_trees(self) -> bool:
        """Whether every row of the batch belongs to one of ``trees``."""
        return sum(request.rows for request in self.trees) == self.tokens
