"""The contract between a drafter's trainer and the training loop, which knows no drafter by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strategies.base import TargetView


@dataclass(frozen=True)
class TrainingBatch:
    """``tokens`` int64 ``[n, width]`` padded on the right; answers span ``starts`` to ``lengths``, both ``[n]``.

    ``features`` ``[n, width, len(taps) * hidden]``: outputs of the target layers that the trainer taps.
    """

    tokens: Tensor
    starts: Tensor
    lengths: Tensor
    features: Tensor


class Trainer(ABC):
    """Holds the drafter in training, in fp32; its ``loss`` runs under autocast beside a bf16 target."""

    taps: tuple[int, ...]
    module: nn.Module
    target: TargetView

    def __init__(self) -> None:
        self.token_losses = token_losses

    @abstractmethod
    def loss(self, batch: TrainingBatch, noise: Tensor) -> Tensor:
        """Mean loss over anchors drawn at random in the answers; ``noise``, uniform ``[n, width]``, decides which."""

    @abstractmethod
    def accepted(self, batch: TrainingBatch) -> Tensor:
        """For every position of ``tokens`` taken as the bonus token: how many drafted tokens the sequence confirms."""

    def compile(self) -> None:
        """Compile what a step runs, for the few shapes that the loop uses."""
        self.token_losses = torch.compile(token_losses, dynamic=False)

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the checkpoint in its public format."""


def draw_anchors(batch: TrainingBatch, count: int, noise: Tensor) -> tuple[Tensor, Tensor]:
    """``count`` positions a sequence, each once, whose token is an answer's and has a successor: ``[n, count]``.

    The second tensor is false where a short answer had no more to give. An anchor is the bonus token of a round.
    Randomness comes in as ``noise`` ``[n, width]``, so that a captured step draws anew at each replay.
    """
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    valid = (positions >= batch.starts[:, None]) & (positions < batch.lengths[:, None] - 1)
    drawn = noise.masked_fill(~valid, -1.0).topk(min(count, noise.shape[1]), dim=1)
    return drawn.indices, drawn.values >= 0


def token_losses(hidden: Tensor, head: nn.Module, targets: Tensor) -> Tensor:
    """Cross-entropy of every row: ``hidden`` ``[rows, hidden]``, ``targets`` ``[rows]`` -> fp32 ``[rows]``."""
    return F.cross_entropy(head(hidden).float(), targets, reduction="none")


def leading_matches(drafted: Tensor, following: Tensor) -> Tensor:
    """How many leading tokens agree: ``[..., k]`` twice -> ``[...]``."""
    return (drafted == following).int().cumprod(dim=-1).sum(dim=-1)


def windows(tokens: Tensor, lengths: Tensor, count: int) -> Tensor:
    """The ``count`` tokens after every position, -1 past a sequence's end: ``[n, width]`` -> ``[n, width, count]``."""
    n, width = tokens.shape
    positions = torch.arange(width, device=tokens.device)
    tokens = tokens.masked_fill(positions >= lengths[:, None], -1)
    padded = F.pad(tokens, (0, count), value=-1)
    return padded[:, 1:].unfold(1, count, 1)[:, :width]
