"""Batches of sequences of like length, in an order that seed and step alone decide."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.errors import UserError
from harness.training.corpus import Sequences


class Batches:
    """Step number -> tokens, starts and lengths, as a ``TrainingBatch`` has them. ``widths``: the few lengths that sequences are padded to, so that few shapes are compiled."""

    def __init__(self, sequences: Sequences, size: int, widths: tuple[int, ...], seed: int, device) -> None:
        self.sequences = Sequences(*(t.to(device).long() for t in (sequences.tokens, sequences.starts, sequences.lengths)))
        self.size, self.seed = size, seed
        # A chain of one token after the bonus token is the least that can be learnt from.
        lengths, usable = sequences.lengths, sequences.lengths - sequences.starts >= 3
        self.groups, below = [], 0
        for width in sorted(widths):
            members = ((lengths > below) & (lengths <= width) & usable).nonzero()[:, 0]
            if len(members) >= size:
                self.groups.append((width, members))
            below = width
        self.per_epoch = sum(len(members) // size for _, members in self.groups)
        if self.per_epoch == 0:
            raise UserError(
                f"loop.batch={size} is more than the corpus has of any width in loop.widths={list(widths)} "
                f"({len(lengths)} sequences, the longest of {int(lengths.max())} tokens); write more parts or ask for less"
            )
        self._epoch, self._plan = -1, []

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._plan = epoch, self._shuffle(epoch)
        width, members = self._plan[index]
        s = self.sequences
        return (s.tokens[members, :width], s.starts[members], s.lengths[members])

    def _shuffle(self, epoch: int) -> list[tuple[int, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + epoch)
        plan = []
        for width, members in self.groups:
            shuffled = members[torch.randperm(len(members), generator=generator)]
            plan += [(width, part) for part in shuffled.split(self.size) if len(part) == self.size]
        return [plan[i] for i in torch.randperm(len(plan), generator=generator).tolist()]
