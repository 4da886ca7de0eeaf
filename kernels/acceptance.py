"""Walk a draft tree along the target's own choices (DDTree, arXiv 2604.12989, section 3; lossless at any temperature).

At every row the target chooses a token: its arg-max, or a sample. While that token is among the row's children the walk
goes on there; the first that is not is the next bonus token. Whatever was drafted, the emitted tokens are the target's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from kernels.device import on_gpu
from kernels.sampling import draw, likeliest, probabilities

Choice = Callable[[int, int, int], int]
"""``(request, row, depth)`` -> the token that the target chooses after that row."""


def accept(tokens: Tensor, parents: Tensor, choose: Choice) -> tuple[list[list[int]], list[int]]:
    """Accepted path and next bonus token of every tree.

    ``tokens`` and ``parents`` ``[batch, rows]``. Returns for each request the accepted rows from the root on (so
    accepted tokens = path length - 1), and the bonus token. Rows off the path are never asked for a choice.
    """
    paths, bonuses = [], []
    for request, (row_tokens, row_parents) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
        children = {(parent, token): row for row, (parent, token) in enumerate(zip(row_parents, row_tokens)) if row}
        path = [0]
        while True:
            token = choose(request, path[-1], len(path) - 1)
            following = children.get((path[-1], token))
            if following is None:
                break
            path.append(following)
        paths.append(path)
        bonuses.append(token)
    return paths, bonuses


def accepted_path(tokens: Tensor, parents: Tensor, depths: Tensor, choice: Choices, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """``accept`` in tensors of fixed shape, on the device: path ``[batch, longest]``, rows kept and bonus token ``[batch]``.

    ``kept`` counts accepted rows with the root; ``path[b, i] = i`` behind them. ``longest``: rows on the longest path of any
    tree, its root included. On a GPU nothing is read back.
    """
    if on_gpu(tokens):
        from kernels.triton_kernels import walk as kernel

        return kernel.walk(tokens, parents, choice.at_all(depths), longest)
    paths, bonuses = accept(tokens, parents, choice)
    return *_in_tensors(paths, longest, tokens.device), torch.tensor(bonuses, device=tokens.device)


def walk(tokens: Tensor, parents: Tensor, chosen: Tensor, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """``accept`` with every row's choice known, as tensors of fixed shapes.

    ``tokens``, ``parents`` and ``chosen`` int64 ``[batch, rows]``: the target chooses ``chosen[b, r]`` after row r. Returns
    the path ``[batch, longest]``, the number of its rows that are accepted, the root included, and the bonus token, both
    ``[batch]``. Behind the accepted rows the path goes on as if nothing had to move: ``path[b, i] = i``. After ``longest``
    rows (at most the tree's) a walk ends and the next choice is the bonus token, whether it was drafted or not.
    """
    choices = chosen.tolist()
    paths, _ = accept(tokens, parents, lambda request, row, depth: choices[request][row])
    path, kept = _in_tensors(paths, longest, tokens.device)
    bonus = chosen.gather(1, path.gather(1, kept[:, None] - 1)).squeeze(1)
    return path, kept, bonus


def _in_tensors(paths: list[list[int]], longest: int, device) -> tuple[Tensor, Tensor]:
    """Paths cut to ``longest`` rows, ``[batch, longest]``, with i in place i behind their end; and their rows ``[batch]``."""
    path = torch.tensor([[*rows[:longest], *range(len(rows), longest)] for rows in paths], device=device)
    return path, torch.tensor([min(len(rows), longest) for rows in paths], device=device)


def emitted(tokens: Tensor, path: Tensor, kept: Tensor, bonus: Tensor, width: int) -> Tensor:
    """What a round gives each request: accepted tokens, the bonus token, then -1; int32 ``[batch, width]``.

    ``tokens`` ``[batch, rows]`` of the trees, ``path``, ``kept`` and ``bonus`` of the walk; ``width`` at least ``path``'s.
    """
    if on_gpu(tokens):
        from kernels.triton_kernels import walk as kernel

        return kernel.emitted(tokens, path, kept, bonus, width)
    given = torch.full((len(tokens), width), -1, dtype=torch.int32)
    for own, row_tokens, rows, count, last in zip(given, tokens, path, kept.tolist(), bonus, strict=True):
        own[: count - 1] = row_tokens[rows[1:count]]
        own[count - 1] = last
    return given


def greedy_rows(logits: Tensor) -> Tensor:
    """The arg-max of ``logits`` ``[batch, rows, vocab]``, int64 ``[batch, rows]``: the first of equal ones, no NaN but where all are."""
    best = likeliest(logits)
    if bool(logits.gather(-1, best[..., None]).isnan().any()):
        numbers = ~logits.isnan()
        logits = logits.masked_fill(~numbers, -torch.inf)
        best = ((logits == logits.amax(dim=-1, keepdim=True)) & numbers).byte().argmax(dim=-1)
    return best


class Choices:
    """What the target chooses behind each row of ``[batch, rows]``: called for one row, or asked for all at once."""

    def __call__(self, request: int, row: int, depth: int) -> int:
        raise NotImplementedError

    def at_all(self, depths: Tensor) -> Tensor:
        """Int64 ``[batch, rows]``, for rows at these ``depths`` ``[batch, rows]``."""
        raise NotImplementedError


class GreedyChoices(Choices):
    """The arg-max of ``logits`` ``[batch, rows, vocab]``, of equal logits the smaller id's."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    @cached_property
    def _best(self) -> list[list[int]]:
        return self.at_all(None).tolist()

    def __call__(self, request: int, row: int, depth: int) -> int:
        return self._best[request][row]

    def at_all(self, depths: Tensor) -> Tensor:
        if on_gpu(self._logits):
            from kernels.triton_kernels import greedy

            return greedy.greedy_rows(self._logits)
        return greedy_rows(self._logits)


class SampledChoices(Choices):
    """A sample of the target at the row, drawn with the uniform number that belongs to the token's position.

    ``logits`` ``[batch, rows, vocab]``; ``uniforms`` ``[batch, depths]`` fp64 in [0, 1), one for each position after the
    root. Numbers tied to positions make the output a function of seed and target alone, the same for every strategy.
    """

    def __init__(self, logits: Tensor, uniforms: Tensor, temperature: float, top_k: int, top_p: float) -> None:
        self._logits, self._uniforms, self._warp = logits, uniforms, (temperature, top_k, top_p)
        self.rows = logits.shape[1]

    def __call__(self, request: int, row: int, depth: int) -> int:
        chances = probabilities(self._logits[request, row], *self._warp)
        return int(draw(chances, self._uniforms[request, depth]))

    def at_all(self, depths: Tensor) -> Tensor:
        return draw(probabilities(self._logits, *self._warp), self._uniforms.gather(1, depths))
