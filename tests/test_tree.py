"""The best-first tree is what brute force over all prefixes finds, whatever the logits."""

from itertools import product

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import best_first_tree
from kernels.tree import ranked_candidates


@st.composite
def slot_logits(draw, batch=1):
    """``[batch, slots, vocab]`` with few distinct values (many ties), bf16-rounded or free, some of them impossible."""
    slots, vocab = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    values = {
        "tied": st.integers(-2, 2).map(float),
        "bf16": st.floats(-30, 30, width=32).map(lambda x: float(torch.tensor(x).bfloat16())),
        "free": st.floats(-30, 30, width=32),
        "impossible": st.sampled_from([0.0, 1.0, -float("inf")]),
    }[draw(st.sampled_from(["tied", "bf16", "free", "impossible"]))]
    numbers = draw(st.lists(values, min_size=batch * slots * vocab, max_size=batch * slots * vocab))
    logits = torch.tensor(numbers).view(batch, slots, vocab)
    logits[..., 0] = logits[..., 0].clamp(min=-30)  # a slot where nothing is possible is no distribution
    return logits


def brute_force(logits: torch.Tensor, budget: int) -> list[tuple[tuple[int, ...], float]]:
    """The likeliest prefixes of ``[slots, vocab]`` as (tokens, log-probability), best first, ties by ranks."""
    slots, vocab = logits.shape
    logprobs = (logits - logits.logsumexp(-1, keepdim=True)).numpy()
    by_rank = [sorted(range(vocab), key=lambda token: (-float(logits[slot, token]), token)) for slot in range(slots)]
    prefixes = []
    for depth in range(1, slots + 1):
        for ranks in product(range(vocab), repeat=depth):
            tokens = tuple(by_rank[slot][rank] for slot, rank in enumerate(ranks))
            score = numpy.float32(0)
            for slot, token in enumerate(tokens):
                score = score + logprobs[slot, token]
            prefixes.append((-score, ranks, tokens))
    return [(tokens, -float(negative)) for negative, ranks, tokens in sorted(prefixes)[:budget]]


def prefixes_of(tokens, parents) -> list[tuple[int, ...]]:
    """Tokens from below the root to every row."""
    found = [()]
    for token, parent in list(zip(tokens, parents, strict=True))[1:]:
        found.append((*found[parent], token))
    return found


@settings(max_examples=200, deadline=None)
@given(slot_logits(), st.integers(1, 40))
def test_tree_is_the_likeliest_prefixes_in_order(logits, budget):
    tokens, parents, depths, logprobs = best_first_tree(torch.tensor([7]), logits, budget)
    wanted = brute_force(logits[0], budget)
    found = prefixes_of(tokens[0].tolist(), parents[0].tolist())
    assert found[1:] == [prefix for prefix, _ in wanted]
    assert depths[0].tolist() == [len(prefix) for prefix in found]
    numpy.testing.assert_allclose(logprobs[0], [0.0] + [score for _, score in wanted], atol=1e-5, rtol=1e-5)
    assert tokens[0, 0] == 7 and parents[0, 0] == -1 and logprobs.dtype == torch.float32


@settings(max_examples=100, deadline=None)
@given(slot_logits(), st.integers(1, 40))
def test_parents_come_first_and_every_prefix_has_its_parent(logits, budget):
    tokens, parents, depths, logprobs = (column[0].tolist() for column in best_first_tree(torch.tensor([0]), logits, budget))
    for row in range(1, len(tokens)):
        parent = parents[row]
        assert 0 <= parent < row and depths[row] == depths[parent] + 1 and logprobs[row] <= logprobs[parent]
    assert len(set(prefixes_of(tokens, parents))) == len(tokens), "siblings are distinct"
    assert logprobs[1:] == sorted(logprobs[1:], reverse=True)


@settings(max_examples=100, deadline=None)
@given(slot_logits(batch=3), st.integers(1, 12))
def test_requests_of_a_batch_do_not_touch_each_other(logits, budget):
    together = best_first_tree(torch.tensor([1, 2, 3]), logits, budget)
    for request in range(3):
        alone = best_first_tree(torch.tensor([request + 1]), logits[request : request + 1], budget)
        for both, one in zip(together, alone, strict=True):
            assert torch.equal(both[request : request + 1], one)


@pytest.mark.parametrize("slots, vocab, all_prefixes", [(1, 3, 3), (2, 3, 12), (3, 2, 14)])
def test_a_budget_beyond_all_prefixes_gives_all_of_them(slots, vocab, all_prefixes):
    torch.manual_seed(0)
    tokens, parents, *_ = best_first_tree(torch.tensor([0]), torch.randn(1, slots, vocab), 1000)
    assert tokens.shape[1] == 1 + all_prefixes
    assert len(set(prefixes_of(tokens[0].tolist(), parents[0].tolist()))) == 1 + all_prefixes



def test_equal_logits_go_to_the_smaller_id_also_at_the_edge_of_the_width():
    """In the shape that bf16 heads give: thousands of tokens, few values; topk alone returns these in any order."""
    torch.manual_seed(0)
    logits = (torch.randn(2, 3, 5000) * 2).round().bfloat16()
    logprobs, ids = ranked_candidates(logits, 40)
    for request, slot in product(range(2), range(3)):
        row = logits[request, slot].float()
        wanted = sorted(range(5000), key=lambda token: (-float(row[token]), token))[:40]
        assert ids[request, slot].tolist() == wanted
        torch.testing.assert_close(logprobs[request, slot], row.log_softmax(-1)[wanted])


def test_a_uniform_drafter_gives_the_tree_that_ranks_decide():
    """Every prefix of a depth is equally likely: then the order is that of the tuples of ranks."""
    tokens, parents, *_ = best_first_tree(torch.tensor([0]), torch.zeros(1, 2, 3), 7)
    prefixes = [(0,), (1,), (2,), (0, 0), (0, 1), (0, 2), (1, 0)]
    assert prefixes_of(tokens[0].tolist(), parents[0].tolist())[1:] == prefixes
