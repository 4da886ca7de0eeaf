"""A step's new rows as rectangles, one a tree, for attention among themselves in one go."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import attention_with_lse
from strategies.ddtree.vllm_plugin.attention import StepAttention


@dataclass(frozen=True)
class Padded:
    """A step's trees as rectangles of ``[trees, widest]`` rows, made once for all layers.

    ``rows`` are the trees' rows in the flat batch, ``place`` ``[trees, widest]`` says which of them fill the rectangles (any,
    where ``mask`` ``[trees, widest, widest]`` lets nobody see), ``of`` is the way back.
    """

    rows: Tensor
    place: Tensor
    of: Tensor
    mask: Tensor
    starts: Tensor
    contexts: Tensor
    table: Tensor
    widest: int
    longest: int


def padded(step: StepAttention) -> Padded:
    device, trees = step.slots.device, step.trees
    widest = max(tree.rows for tree in trees)
    rows, place, of, starts = [], [], [], [0]
    mask = torch.zeros(len(trees), widest, widest, dtype=torch.bool)
    for number, (tree, seen) in enumerate(zip(trees, step.masks, strict=True)):
        first = len(rows)
        rows += range(tree.start, tree.start + tree.rows)
        place.append([first + min(row, tree.rows - 1) for row in range(widest)])
        of += range(number * widest, number * widest + tree.rows)
        starts.append(len(rows))
        mask[number, : tree.rows, : tree.rows] = seen[0].cpu()
    contexts = [tree.base for tree in trees]
    ints = {"dtype": torch.int32, "device": device}
    return Padded(
        rows=torch.tensor(rows, device=device),
        place=torch.tensor(place, device=device),
        of=torch.tensor(of, device=device),
        mask=mask.to(device),
        starts=torch.tensor(starts, **ints),
        contexts=torch.tensor(contexts, **ints),
        table=step.table[torch.tensor([tree.index for tree in trees], device=device)],
        widest=widest,
        longest=max(contexts),
    )


def new_rows(trees: Padded, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention among the new rows: ``[rows, heads, head_dim]`` and log-sum-exp ``[rows, heads]``, fp32, for ``trees.rows``."""
    rectangles = (part[trees.place].transpose(1, 2) for part in (query, key, value))
    out, lse = attention_with_lse(*rectangles, trees.mask, scale)
    return out.transpose(1, 2).flatten(0, 1)[trees.of], lse.transpose(1, 2).flatten(0, 1)[trees.of]
