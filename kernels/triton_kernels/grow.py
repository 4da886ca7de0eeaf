"""The best-first draft tree on the GPU: one program grows one request's tree, one node a step, in one warp.

The frontier. ``kernels.tree`` keeps a heap of prefixes that may come next. They are, for every row p of the tree so far, p's
next child (p, n): n counts the children that p has. So the frontier needs one entry a row, and a step is: take the entry of
the largest log-probability, write it as the next row t, replace (p, n) by (p, n + 1), add (t, 0). Scores are the same sums in
the same order as the heap's, so they are the same numbers.

Ties. Of equal scores the heap takes the smaller tuple of ranks. Let the tree's rows stand in lexicographic order of their
tuples, which is pre-order, and let E(p) be the place behind p's last descendant. The children that p has are of smaller rank
than n, so (p, n) would be inserted at E(p): exactly E(p) rows are smaller than it. Hence, of two entries, the one with smaller
E is the smaller tuple. If E(p) = E(q), both subtrees end there, so one row, say q, is a descendant of the other through a child
of p of rank below n: (q, m) is smaller, and q is deeper. So E ascending, then depth descending, is the order of tuples. Inserting
(p, n) moves E by one for p, for the entries behind it in this order, and for no other; the new row's E is E(p) + 1.

An entry is three numbers: ``cost``, the bits of the negated score, which order as integers (a score is never above 0); ``place``,
of 31 bits: E - 1 (9), 15 - depth of p (4), p (9), n (9); and p's own score. One minimum finds the best cost, a second the
smallest place that has it, which says all there is to know of the entry. The arrays double when they are full.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels import levels
from kernels.triton_kernels.candidates import ranked_candidates

LARGEST_BUDGET, MOST_SLOTS = 512, 15
STEPS = 128
"""The most nodes that are grown one a step."""
_FIRST = 32


def best_first_tree(bonus: Tensor, logits: Tensor, budget: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``kernels.tree.best_first_tree`` without a word to the host; at most 512 nodes and 15 slots.

    ``bonus`` int64 ``[batch]``, ``logits`` ``[batch, slots, vocab]`` -> tokens, parents, depths (int64) and prefix
    log-probabilities (fp32), each ``[batch, 1 + nodes]``, nodes = min(budget, all prefixes that exist).
    """
    logprobs, ids = ranked_candidates(logits, min(budget, logits.shape[-1]))
    return grow(bonus, logprobs, ids, budget)


def grow(bonus: Tensor, logprobs: Tensor, ids: Tensor, budget: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tree from every slot's candidates, best first, both ``[batch, slots, width]``; width is budget or the vocabulary."""
    batch, slots, width = logprobs.shape
    if not 1 <= budget <= LARGEST_BUDGET or not 1 <= slots <= MOST_SLOTS:
        raise ValueError(f"budget {budget}, slots {slots}: 1 to {LARGEST_BUDGET} and 1 to {MOST_SLOTS} are supported")
    bonus, logprobs, ids = bonus.contiguous(), logprobs.contiguous(), ids.contiguous()
    nodes = min(budget, sum(width**depth for depth in range(1, slots + 1)))
    tree = (
        *torch.empty(3, batch, 1 + nodes, dtype=torch.int64, device=logprobs.device),
        torch.empty(batch, 1 + nodes, dtype=torch.float32, device=logprobs.device),
    )
    large = STEPS < nodes <= width
    if large:
        found = levels.find(logprobs, nodes)
        levels.order(bonus, ids, found, tree)
    grow_kernel[(batch,)](
        bonus, logprobs, ids, *tree, found[-1] if large else None,
        NODES=nodes, SLOTS=slots, WIDTH=width, FIRST=_FIRST, PHASES=max(0, (nodes - 1).bit_length() - 5) + 1,
        ROWS=triton.next_power_of_2(1 + nodes), GUESSES=levels.GUESSES if large else 0, MOST=levels.MOST,
        num_warps=1, num_stages=1,
    )  # fmt: skip
    return tree


@triton.jit
def _cost(score):
    """The bits of -score for a score of at most 0; below the cost of an entry that does not exist, whatever the score."""
    return tl.minimum(score.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0x7FFFFFFE)


@triton.jit
def grow_kernel(
    bonus_ptr, logprobs_ptr, ids_ptr, tokens_ptr, parents_ptr, depths_ptr, scores_ptr, counts_ptr,
    NODES: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, PHASES: tl.constexpr,
    ROWS: tl.constexpr, GUESSES: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Everything contiguous; ``FIRST << (PHASES - 1)`` is at least ``NODES``. With ``GUESSES``: only where none fits."""
    NOTHING: tl.constexpr = 0x7FFFFFFF  # the cost of no entry
    NEXT: tl.constexpr = 1 << 22  # one more in E
    request = tl.program_id(0).to(tl.int64)
    if GUESSES > 0:
        if levels.fitting(counts_ptr + request * GUESSES, NODES, GUESSES, MOST) < GUESSES:
            return
    logprobs_ptr += request * SLOTS * WIDTH
    ids_ptr += request * SLOTS * WIDTH
    tokens_ptr += request * (NODES + 1)
    parents_ptr += request * (NODES + 1)
    depths_ptr += request * (NODES + 1)
    scores_ptr += request * (NODES + 1)

    row = tl.full((), 1, tl.int32)
    entries = tl.arange(0, FIRST)
    costs = tl.where(entries == 0, _cost(tl.load(logprobs_ptr)), NOTHING)
    places = tl.where(entries == 0, 15 << 18, -1)  # -1: smaller than every place of an entry, so never moved
    scores = tl.zeros((FIRST,), tl.int32)
    for phase in tl.static_range(PHASES):
        if phase > 0:
            nowhere = tl.full((FIRST << (phase - 1),), -1, tl.int32)
            costs = tl.interleave(costs, tl.where(nowhere < 0, NOTHING, 0))
            places = tl.interleave(places, nowhere)
            scores = tl.interleave(scores, tl.zeros((FIRST << (phase - 1),), tl.int32))
        entries = tl.arange(0, FIRST << phase)
        end = NODES + 1 if phase == PHASES - 1 else FIRST << phase
        while row < end:  # not range: the interpreter cannot make Python numbers of its bounds under numpy 2.4
            cost = tl.min(costs, 0)
            place = tl.min(tl.where(costs == cost, places, NOTHING), 0)
            depth = 15 - ((place >> 18) & 15)
            rank = place & 511
            beside = tl.load(logprobs_ptr + depth * WIDTH + tl.minimum(rank + 1, WIDTH - 1))
            below = tl.load(logprobs_ptr + tl.minimum(depth + 1, SLOTS - 1) * WIDTH)
            taken = places == place
            above = tl.sum(tl.where(taken, scores, 0), 0)
            score = 0.0 - cost.to(tl.float32, bitcast=True)
            sibling = _cost(above.to(tl.float32, bitcast=True) + beside)
            sibling = tl.where(rank + 1 < WIDTH, sibling, NOTHING)
            child = tl.where(depth + 1 < SLOTS, _cost(score + below), NOTHING)
            # An even entry is an old one: the arrays were interleaved with empty ones.
            fresh = entries == (row if phase == 0 else 2 * (row - (FIRST << (phase - 1))) + 1)
            costs = tl.where(fresh, child, tl.where(taken, sibling, costs))
            places = tl.where(taken, place + (NEXT + 1), tl.where(places > place, places + NEXT, places))
            places = tl.where(fresh, ((((place >> 18) + 15) << 9) | row) << 9, places)
            scores = tl.where(fresh, score.to(tl.int32, bitcast=True), scores)
            # Parent, depth and rank wait in `tokens` until all rows can be written together.
            tl.store(tokens_ptr + row, (place & 0x3FFFFF).to(tl.int64))
            tl.store(scores_ptr + row, score)
            row += 1

    tl.debug_barrier()
    rows = tl.arange(0, ROWS)
    inside = (rows >= 1) & (rows <= NODES)
    packed = tl.load(tokens_ptr + rows, mask=inside, other=0)
    slot = 15 - (packed >> 18)
    ids = tl.load(ids_ptr + slot * WIDTH + (packed & 511), mask=inside, other=0)
    tl.debug_barrier()
    root = rows == 0
    written = rows <= NODES
    tl.store(tokens_ptr + rows, tl.where(root, tl.load(bonus_ptr + request), ids), mask=written)
    tl.store(parents_ptr + rows, tl.where(root, -1, (packed >> 9) & 511), mask=written)
    tl.store(depths_ptr + rows, tl.where(root, 0, slot + 1), mask=written)
    tl.store(scores_ptr + rows, tl.zeros((ROWS,), tl.float32), mask=root)
