"""Drafting with DDTree on the torch engine: DFlash's slots, expanded into the most probable prefixes."""

from __future__ import annotations

from torch import Tensor

from harness.errors import UserError
from kernels import best_first_tree
from strategies.base import DraftTree, TargetView
from strategies.dflash.drafter import DFlashDrafter
from strategies.dflash.proposer import BlockProposer

LARGEST_BUDGET = 1024
AUTO = "auto"
# Rows of a tree that may be verified with budget "auto", the root among them: whole tiles of a matrix product.
LADDER = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)


class TreeProposer(BlockProposer):
    """A tree of at most ``budget`` nodes, the root not counted. ``auto``: the largest on ``LADDER``, for the loop to cut."""

    def __init__(self, drafter: DFlashDrafter, target: TargetView, budget: int | str) -> None:
        super().__init__(drafter, target)
        if budget == AUTO:
            self.ladder, budget = LADDER, LADDER[-1] - 1
        if not isinstance(budget, int) or not 1 <= budget <= LARGEST_BUDGET:
            raise UserError(f"strategy.budget={budget} is not a node budget; give a whole number from 1 to {LARGEST_BUDGET}, or {AUTO}")
        self.budget = budget
        self.max_rows = budget + 1
        self.longest = min(budget, self.slots) + 1

    def limit(self, rows: int) -> None:
        self.budget = rows - 1

    def propose(self, bonus: Tensor, lengths: Tensor) -> DraftTree:
        return DraftTree(*best_first_tree(bonus, self.slot_logits(bonus, lengths), self.budget))
