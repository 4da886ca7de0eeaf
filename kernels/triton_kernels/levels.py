"""Large draft trees: prefixes above a threshold, level by level, for many guesses of the threshold at once; then their order.

The prefixes whose score reaches a threshold are closed under parents, and the children of one prefix that reach it are its
first ones: level after level they are found by bisection, all parents at a time, without a frontier. One program a guess does
so and gives up when it has found more than ``MOST`` prefixes. The smallest guess that finds as many as the tree needs has
the tree among them. The guesses divide the range between the best child's score and a score that at least ``nodes`` prefixes
reach: the likeliest tokens down to some slot, then the first ``nodes`` tokens of it, whichever slot is best.

Order is by score, then by tuple of ranks, as in ``kernels.tree``. A tuple becomes a number by writing every rank r in 2 L + 1
bits, L = floor(log2(r + 1)): L ones, a zero, the last L bits of r + 1. No such word begins another and larger ranks are larger
words, so numbers with the first bit at the top order like tuples; only a prefix and its extensions by ranks of 0 are equal, and
these are found in order of depth. A prefix with ranks r1 ... rd has (r1 + 1) ... (rd + 1) prefixes that are componentwise not
larger, whose scores reach what its own reaches, so among ``MOST`` prefixes the L of one sum to at most log2(MOST), and 15 slots
make at most 15 + 2 * 10 bits. A prefix's row is then the count of those before it.

Where no guess fits, because too many prefixes have one score, the tree is left to ``grow``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

GUESSES, MOST = 64, 1024
_BITS = tl.constexpr(36)


def find(logprobs: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prefixes of every guess: scores fp32, codes int64, links int32, each ``[batch, GUESSES, MOST]``; counts int32 ``[batch, GUESSES]``.

    ``logprobs`` ``[batch, slots, width]``, best first, width at least ``nodes``. Of a prefix its link holds the parent's
    place (10 bits), the last rank (9), the depth (4), the number of bits of its code (6), from the lowest up.
    """
    batch, slots, width = logprobs.shape
    device = logprobs.device
    scores = torch.empty(batch, GUESSES, MOST, dtype=torch.float32, device=device)
    codes = torch.empty(batch, GUESSES, MOST, dtype=torch.int64, device=device)
    links, firsts = torch.empty(2, batch, GUESSES, MOST, dtype=torch.int32, device=device)
    counts = torch.empty(batch, GUESSES, dtype=torch.int32, device=device)
    find_kernel[(batch, GUESSES)](
        logprobs, scores, codes, links, firsts, counts,
        NODES=nodes, SLOTS=slots, WIDTH=width, PADDED=triton.next_power_of_2(width), MOST=MOST, BLOCK=min(128, MOST),
        num_warps=1, num_stages=1,
    )  # fmt: skip
    return scores, codes, links, counts


def order(bonus: Tensor, ids: Tensor, found: tuple[Tensor, ...], tree: tuple[Tensor, ...]) -> None:
    """Write the rows of ``tree`` (tokens, parents, depths, log-probabilities ``[batch, 1 + nodes]``) where a guess fits."""
    batch, slots, width = ids.shape
    order_kernel[(batch, MOST // 16)](
        bonus, ids, *found, *tree,
        NODES=tree[0].shape[1] - 1, SLOTS=slots, WIDTH=width, GUESSES=GUESSES, MOST=MOST, ROWS=16, BLOCK=128, num_warps=4,
    )  # fmt: skip


@triton.jit
def fitting(counts_ptr, NODES: tl.constexpr, GUESSES: tl.constexpr, MOST: tl.constexpr):
    """The first of a request's guesses that found enough prefixes and not too many, or ``GUESSES``."""
    guess = tl.arange(0, GUESSES)
    counts = tl.load(counts_ptr + guess)
    return tl.min(tl.where((counts >= NODES) & (counts <= MOST), guess, GUESSES), 0)


@triton.jit
def _floor_log2(number):
    """Of int32 from 1 to 2**24."""
    return (number.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def _append(rank, code, used):
    """``code`` of ``used`` bits and the word of ``rank``: the new code and its number of bits."""
    log = _floor_log2(rank + 1)
    word = (((1 << log) - 1) << (log + 1)) | (rank + 1 - (1 << log))
    used = used + 2 * log + 1
    return code | (word.to(tl.int64) << tl.maximum(_BITS - used, 0).to(tl.int64)), used


@triton.jit
def find_kernel(
    logprobs_ptr, scores_ptr, codes_ptr, links_ptr, firsts_ptr, counts_ptr,
    NODES: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, MOST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    request, guess, guesses = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    logprobs_ptr += request * SLOTS * WIDTH
    scores_ptr += (request * guesses + guess) * MOST
    codes_ptr += (request * guesses + guess) * MOST
    links_ptr += (request * guesses + guess) * MOST
    firsts_ptr += (request * guesses + guess) * MOST

    slot = tl.arange(0, 16)
    best = tl.load(logprobs_ptr + slot * WIDTH, mask=slot < SLOTS, other=0.0)
    worst = tl.load(logprobs_ptr + slot * WIDTH + NODES - 1, mask=slot < SLOTS, other=-float("inf"))
    reached = tl.max(tl.cumsum(best, 0) - best + worst, 0)
    highest = tl.load(logprobs_ptr)
    # A little more than the whole range, lest rounding keep the last guess from finding enough.
    threshold = highest + (reached - highest) * ((guess + 1) * (1.00001 / guesses))

    ranks = tl.arange(0, PADDED)
    top = tl.load(logprobs_ptr + ranks, mask=ranks < WIDTH, other=-float("inf"))
    reaching = (ranks < WIDTH) & (top >= threshold)
    words, bits = _append(ranks, tl.zeros((PADDED,), tl.int64), tl.zeros((PADDED,), tl.int32))
    tl.store(scores_ptr + ranks, top, mask=reaching)
    tl.store(codes_ptr + ranks, words, mask=reaching)
    tl.store(links_ptr + ranks, (bits << 23) | (1 << 19) | (ranks << 10), mask=reaching)
    begin = tl.full((), 0, tl.int32)
    end = tl.sum(reaching.to(tl.int32), 0)
    depth = tl.full((), 1, tl.int32)
    while (depth < SLOTS) & (begin < end) & (end <= MOST):
        slot_ptr = logprobs_ptr + depth * WIDTH
        tl.debug_barrier()
        # Where each parent's children begin.
        parent = begin + tl.arange(0, BLOCK)
        new_end = end
        while (tl.min(parent, 0) < end) & (new_end <= MOST):
            exists = parent < end
            score = tl.load(scores_ptr + parent, mask=exists, other=0.0)
            count = tl.zeros((BLOCK,), tl.int32)
            step = tl.full((), PADDED, tl.int32)
            while step > 0:
                last = count + step - 1
                reaches = score + tl.load(slot_ptr + tl.minimum(last, WIDTH - 1)) >= threshold
                count = tl.where(exists & (last < WIDTH) & reaches, count + step, count)
                step = step // 2
            tl.store(firsts_ptr + parent, new_end + tl.cumsum(count, 0) - count, mask=exists)
            new_end += tl.sum(count, 0)
            parent += BLOCK
        tl.debug_barrier()
        # Each child finds its parent: the last that begins not after it.
        child = end + tl.arange(0, BLOCK)
        while (tl.min(child, 0) < new_end) & (new_end <= MOST):
            exists = child < new_end
            parent = tl.zeros((BLOCK,), tl.int32) + begin
            step = 1 << _floor_log2(end - begin)
            while step > 0:
                later = parent + step
                first = tl.load(firsts_ptr + later, mask=later < end, other=MOST)
                parent = tl.where(first <= child, later, parent)
                step = step // 2
            rank = child - tl.load(firsts_ptr + parent, mask=exists, other=0)
            score = tl.load(scores_ptr + parent, mask=exists, other=0.0) + tl.load(slot_ptr + rank, mask=exists, other=0.0)
            code = tl.load(codes_ptr + parent, mask=exists, other=0)
            code, used = _append(rank, code, tl.load(links_ptr + parent, mask=exists, other=0) >> 23)
            tl.store(scores_ptr + child, score, mask=exists)
            tl.store(codes_ptr + child, code, mask=exists)
            tl.store(links_ptr + child, (used << 23) | ((depth + 1) << 19) | (rank << 10) | parent, mask=exists)
            child += BLOCK
        begin = end
        end = new_end
        depth += 1
    tl.store(counts_ptr + request * guesses + guess, end)


@triton.jit
def _before(score, code, place, scores_ptr, codes_ptr, count, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """How many of ``count`` prefixes come before each of ``ROWS``."""
    before = tl.zeros((ROWS,), tl.int32)
    other = tl.arange(0, BLOCK)
    while tl.min(other, 0) < count:
        exists = other < count
        scores = tl.load(scores_ptr + other, mask=exists, other=-float("inf"))[None, :]
        codes = tl.load(codes_ptr + other, mask=exists, other=0)[None, :]
        smaller = (codes < code[:, None]) | ((codes == code[:, None]) & (other[None, :] < place[:, None]))
        is_before = (scores > score[:, None]) | ((scores == score[:, None]) & smaller)
        before += tl.sum((is_before & exists[None, :]).to(tl.int32), 1)
        other += BLOCK
    return before


@triton.jit
def order_kernel(
    bonus_ptr, ids_ptr, scores_ptr, codes_ptr, links_ptr, counts_ptr, tokens_ptr, parents_ptr, depths_ptr, logprobs_ptr,
    NODES: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, GUESSES: tl.constexpr, MOST: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The rows of ``ROWS`` prefixes, each program its own."""
    request, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    counts_ptr += request * GUESSES
    guess = fitting(counts_ptr, NODES, GUESSES, MOST)
    if guess < GUESSES:
        count = tl.load(counts_ptr + guess)
        scores_ptr += (request * GUESSES + guess) * MOST
        codes_ptr += (request * GUESSES + guess) * MOST
        links_ptr += (request * GUESSES + guess) * MOST
        place = part * ROWS + tl.arange(0, ROWS)
        exists = place < count
        score = tl.load(scores_ptr + place, mask=exists, other=0.0)
        code = tl.load(codes_ptr + place, mask=exists, other=0)
        link = tl.load(links_ptr + place, mask=exists, other=0)
        depth = (link >> 19) & 15
        parent = link & 1023
        child = exists & (depth > 1)
        parent_score = tl.load(scores_ptr + parent, mask=child, other=0.0)
        parent_code = tl.load(codes_ptr + parent, mask=child, other=0)
        row = 1 + _before(score, code, place, scores_ptr, codes_ptr, count, ROWS, BLOCK)
        parent_row = 1 + _before(parent_score, parent_code, parent, scores_ptr, codes_ptr, count, ROWS, BLOCK)
        written = exists & (row <= NODES)
        token = tl.load(ids_ptr + (request * SLOTS + depth - 1) * WIDTH + ((link >> 10) & 511), mask=written, other=0)
        row += request * (NODES + 1)
        tl.store(tokens_ptr + row, token, mask=written)
        tl.store(parents_ptr + row, tl.where(depth > 1, parent_row, 0).to(tl.int64), mask=written)
        tl.store(depths_ptr + row, depth.to(tl.int64), mask=written)
        tl.store(logprobs_ptr + row, score, mask=written)
        if part == 0:
            root = request * (NODES + 1)
            tl.store(tokens_ptr + root, tl.load(bonus_ptr + request))
            tl.store(parents_ptr + root, tl.full((), -1, tl.int64))
            tl.store(depths_ptr + root, tl.full((), 0, tl.int64))
            tl.store(logprobs_ptr + root, tl.full((), 0.0, tl.float32))
