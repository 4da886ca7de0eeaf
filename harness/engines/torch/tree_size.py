"""How many rows of a round's trees are verified: as many as promise the most tokens a second (CaDDTree, arXiv 2606.01813)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels import pick_size
from strategies.base import DraftTree

# Between contexts the cost is nearly linear: attention's part grows with them.
_FIRST_CONTEXT, _CONTEXT_STEP = 256, 4
# Of a size that was not measured, because no tree of it could pay [s].
_NEVER = 1e9


@dataclass(frozen=True)
class CostTable:
    """What a round of ``batch`` requests costs on this machine, at each of some ``contexts`` and ``rows`` of a tree.

    ``draft_s[c]``: drafting, building the tree and picking its size, behind ``contexts[c]`` committed positions [s].
    ``verify_s[c][r]``: the rest of the round, with ``rows[r]`` rows a request: target pass, acceptance, commit [s].
    """

    batch: int
    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    draft_s: tuple[float, ...]
    verify_s: tuple[tuple[float, ...], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def joined(self, other: CostTable) -> CostTable:
        """With the contexts of ``other``, a table of other contexts and of some of the ``rows``, the first and the last among them.

        What its contexts add to the first one here, attention mostly, is linear in the rows between those.
        """
        first = dict(zip(self.rows, self.verify_s[0], strict=True))
        filled = []
        for row in other.verify_s:
            added = [seconds - first[rows] for rows, seconds in zip(other.rows, row, strict=True)]
            filled.append(tuple(own + float(np.interp(rows, other.rows, added)) for rows, own in first.items()))
        columns = (self.contexts + other.contexts, self.draft_s + other.draft_s, self.verify_s + tuple(filled))
        contexts, draft_s, verify_s = zip(*sorted(zip(*columns, strict=True)), strict=True)
        return replace(self, contexts=contexts, draft_s=draft_s, verify_s=verify_s)

    def round_s(self) -> list[list[float]]:
        """The whole round, by context and rows [s]."""
        return [[draft + verify for verify in row] for draft, row in zip(self.draft_s, self.verify_s, strict=True)]


class TreeSize:
    """Picks one of the sizes ``rows`` for the trees of a batch, on the device, by what rounds cost behind ``contexts``.

    ``number`` (int64 ``[1]``) says which of them it is.
    """

    def __init__(self, rows: Sequence[int], contexts: Sequence[int], device: torch.device) -> None:
        self.rows, self.contexts = tuple(rows), tuple(contexts)
        self._rows = torch.tensor(self.rows, device=device)
        self._at = torch.tensor(self.contexts, dtype=torch.float64, device=device)
        self._round_s = torch.full((len(self.contexts), len(self.rows)), _NEVER, dtype=torch.float64, device=device)
        self.number = torch.zeros(1, dtype=torch.int64, device=device)

    def learn(self, table: CostTable) -> None:
        """The costs, of all ``contexts`` and of the first of the ``rows``; larger trees are not picked then."""
        known = torch.tensor(table.round_s(), dtype=torch.float64)
        self._round_s[:, : known.shape[1]] = known.to(self._round_s.device)

    def pick(self, tree: DraftTree, lengths: Tensor) -> None:
        """Of ``tree``, whose best rows come first, behind ``lengths`` ``[batch]``. Nothing is read back."""
        pick_size(tree.logprobs, lengths, self._rows, self._at, self._round_s, self.number)

    def picked(self) -> int:
        """The rows that ``pick`` chose, read back from the device."""
        return self.rows[int(self.number)]


def contexts_to(reach: int, most: int) -> tuple[int, ...]:
    """Contexts at which to measure rounds of requests that reach ``reach`` positions: 256, 1024, 4096, …, none above ``most``."""
    contexts = [min(_FIRST_CONTEXT, most)]
    while contexts[-1] < min(reach, most):
        contexts.append(min(contexts[-1] * _CONTEXT_STEP, most))
    return tuple(contexts)
