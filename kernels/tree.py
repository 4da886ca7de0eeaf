"""Best-first draft tree from the slot logits of a block-diffusion drafter (DDTree, arXiv 2604.12989, section 3)."""

from __future__ import annotations

import heapq

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.device import on_gpu
from kernels.native import layers as native


def ranked_candidates(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The ``width`` likeliest tokens of every slot, best first, equal logits by smaller id.

    ``logits`` ``[..., vocab]`` -> log-probabilities and ids, both ``[..., width]``, log-probabilities in fp32.
    """
    flat = logits.flatten(0, -2)
    if (found := native.candidates(flat, width)) is not None:
        logprobs, ids = found
    else:
        wide, ids = flat.float(), _largest(flat, width)
        logprobs = wide.gather(1, ids) - wide.logsumexp(dim=-1, keepdim=True)
    return logprobs.view(*logits.shape[:-1], width), ids.view(*logits.shape[:-1], width)


def _largest(values: Tensor, width: int, block: int = 256) -> Tensor:
    """Columns ``[rows, width]`` of the largest of ``values`` ``[rows, columns]``, of equal ones the smaller column first.

    topk leaves the order of equal values open, and bf16 heads give many; the tree must depend on the logits alone. A stable
    sort of all is slow. But the ``width`` best lie in the ``width`` best blocks, by their maxima and in the same order.
    """
    rows, columns = values.shape
    if block < 16 or width * block >= columns:
        return values.sort(dim=-1, descending=True, stable=True).indices[:, :width]
    if columns % block:
        values = F.pad(values, (0, -columns % block), value=-torch.inf)
    blocks = values.view(rows, -1, block)
    best = _largest(blocks.amax(dim=-1), width).sort(dim=-1).values
    places = (best[..., None] * block + torch.arange(block, device=values.device)).flatten(1)
    inside = blocks[torch.arange(rows, device=values.device)[:, None], best].flatten(1)
    return places.gather(1, _largest(inside, width, block // 16))


def best_first_tree(bonus: Tensor, logits: Tensor, budget: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The ``budget`` most probable prefixes under the product of the slots' distributions, as one tree a request.

    ``bonus`` ``[batch]`` is the root, ``logits`` ``[batch, slots, vocab]`` slot k's distribution at depth k + 1.
    Returns tokens, parents, depths (int64) and prefix log-probabilities (fp32), each ``[batch, 1 + nodes]``, where
    nodes = min(budget, all prefixes that exist). Parents precede children; ties go to the smaller tuple of ranks.
    O(budget log budget) after the top-k.
    """
    if on_gpu(logits):
        from kernels.triton_kernels import grow

        return grow.best_first_tree(bonus, logits, budget)
    vocab = logits.shape[-1]
    logprobs, ids = ranked_candidates(logits, min(budget, vocab))
    trees = [
        _grow(int(root), scores, tokens, budget)
        for root, scores, tokens in zip(bonus.tolist(), logprobs.cpu().numpy(), ids.tolist(), strict=True)
    ]
    columns = [torch.tensor(column, device=logits.device) for column in zip(*trees, strict=True)]
    return columns[0], columns[1], columns[2], columns[3].float()


def _grow(root: int, logprobs: np.ndarray, ids: list[list[int]], budget: int):
    """One tree. ``logprobs`` ``[slots, width]`` fp32. Sums stay in fp32 so that every implementation orders alike."""
    slots, width = logprobs.shape
    tokens, parents, depths, scores = [root], [-1], [0], [np.float32(0)]
    # An entry: (-score, ranks along the path, row of the parent). Ranks make equal scores comparable.
    heap = [(-logprobs[0, 0], (0,), 0)]
    while heap and len(tokens) <= budget:
        negative, ranks, parent = heapq.heappop(heap)
        depth, rank = len(ranks), ranks[-1]
        row = len(tokens)
        tokens.append(ids[depth - 1][rank])
        parents.append(parent)
        depths.append(depth)
        scores.append(-negative)
        if rank + 1 < width:
            sibling = scores[parent] + logprobs[depth - 1, rank + 1]
            heapq.heappush(heap, (-sibling, (*ranks[:-1], rank + 1), parent))
        if depth < slots:
            child = -negative + logprobs[depth, 0]
            heapq.heappush(heap, (-child, (*ranks, 0), row))
    return tokens, parents, depths, scores
