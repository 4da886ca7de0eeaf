"""The contract between a strategy and the decode loop: every proposer returns draft trees, one loop verifies them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from kernels import chain_columns


@dataclass(frozen=True)
class DraftTree:
    """A batch of draft trees. Row 0 is the root (the bonus token) and is not counted in the node budget.

    All tensors are ``[batch, rows]``. A parent's row comes before its children's; the root's parent is -1.
    ``logprobs`` is the drafter's log-probability of the whole prefix that ends in the row, 0 at the root.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    logprobs: Tensor

    @property
    def rows(self) -> int:
        return self.tokens.shape[1]

    def first(self, rows: int) -> DraftTree:
        """Its first ``rows`` rows, which are trees too, for parents come first."""
        columns = ("tokens", "parents", "depths", "logprobs")
        return replace(self, **{name: getattr(self, name)[:, :rows].contiguous() for name in columns})

    @classmethod
    def root(cls, bonus: Tensor) -> DraftTree:
        """The tree of a round that proposes nothing: ``bonus`` ``[batch]`` alone, where it lies."""
        return cls(bonus[:, None], *_chain(len(bonus), 1, bonus.device))

    @classmethod
    def chain(cls, bonus: Tensor, drafted: Tensor, logprobs: Tensor) -> DraftTree:
        """A tree without siblings from ``drafted`` ``[batch, k]`` and its tokens' own log-probabilities ``[batch, k]``."""
        tokens, prefix = chain_columns(bonus, drafted, logprobs)
        parents, depths, _ = _chain(*tokens.shape, tokens.device)
        return cls(tokens, parents, depths, prefix)


@cache
def _chain(batch: int, rows: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Parents and depths of chains, and log-probabilities of tokens that are certain; made once: they are not to be written."""
    with torch.inference_mode(False):
        depths = torch.arange(rows, device=device).repeat(batch, 1)
        return depths - 1, depths, torch.zeros(batch, rows, device=device)


class Proposer(ABC):
    """Drafts for one batch of requests at a time. The loop calls ``reset``, then ``commit`` and ``propose`` in turns.

    ``taps`` lists the target layers whose outputs it reads. ``max_rows`` is the most rows of a tree of its, ``longest`` the
    most on one path, both with the root.

    ``capturable``: every ``propose`` gives trees of the same number of rows, and neither it nor ``commit`` reads a number
    back from the device, so a round can be captured as a graph on a GPU. Without it rounds run eagerly.

    ``ladder``: rows that trees may be cut to, ascending, the last ``max_rows``. Every round the loop verifies the first rows of
    its trees, as many as promise the most tokens a second by what rounds cost on this machine; so the best rows must come
    first. Empty: trees stay whole.
    """

    taps: tuple[int, ...] = ()
    max_rows: int = 1
    longest: int = 1
    capturable: bool = False
    ladder: tuple[int, ...] = ()

    @property
    def slack(self) -> int:
        """Positions behind an answer that the rounds which end it may touch."""
        return self.max_rows + self.longest

    def reset(self, batch: int, capacity: int) -> None:
        """Forget the last requests. ``capacity`` is the most positions that a request can reach, a round's rows included.

        Where the sizes are the last ones, a ``capturable`` proposer keeps its tensors: a captured round knows their places.
        """

    def commit(self, tokens: Tensor, features: Tensor, lengths: Tensor, kept: Tensor) -> None:
        """Positions that became part of the context, in order: the prompts first, later each round's accepted rows.

        ``tokens`` ``[batch, n]``; ``features`` ``[batch, n, len(taps) * hidden]``, the tapped layers' outputs side by side. Of
        request b the first ``kept[b]`` (int64 ``[batch]``) count and stand at positions ``lengths[b], lengths[b] + 1, …``;
        what follows them means nothing. The bonus token is not among them: it has no features yet.
        """

    @abstractmethod
    def propose(self, bonus: Tensor, lengths: Tensor) -> DraftTree:
        """Draft trees that grow from ``bonus`` ``[batch]``, whose positions are ``lengths`` ``[batch]``.

        Both stay as they are; ``lengths`` counts what was committed.
        """

    def limit(self, rows: int) -> None:
        """Until told otherwise no tree will be cut to more than ``rows``, one of ``ladder``: more need not be grown."""

    def drafting_done(self) -> None:
        """The decode loop puts its clock here: call it in ``propose`` behind the draft's forward pass, where a tree is
        then built from what it gave."""

    def weights_files(self) -> tuple[Path, ...]:
        """The files that the drafter was read from, for the record: those of every module that ``load_weights`` filled."""
        modules = (value for value in vars(self).values() if isinstance(value, nn.Module))
        return tuple(module.weights_file for module in modules if hasattr(module, "weights_file"))


@dataclass(frozen=True)
class TargetView:
    """What a strategy may see of the target: its sizes and the frozen modules that a drafter borrows.

    ``embed`` maps ids to embeddings; ``head`` maps final-normed hidden states to logits ``[..., vocab]``.
    """

    hidden_size: int
    vocab_size: int
    num_layers: int
    context_length: int
    embed: nn.Module
    head: nn.Module
    dtype: torch.dtype
    device: torch.device
