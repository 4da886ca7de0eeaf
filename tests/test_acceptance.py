"""Acceptance is a walk along the target's own choices; choices come from the filtered distribution, never from beside it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_sampling import naive_probabilities
from tiny_decoding import Oracle, greedy, run, tiny_target

from kernels import GreedyChoices, SampledChoices, accept, draw, greedy_rows, probabilities
from kernels import walk as walk_of_choices
from strategies.base import DraftTree


@st.composite
def drafts(draw, rows: int):
    """A tree of ``rows`` rows whose siblings differ, over a vocabulary of 4."""
    tokens, parents, taken = [draw(st.integers(0, 3))], [-1], {}
    for row in range(1, rows):
        free = [parent for parent in range(row) if len(taken.get(parent, ())) < 4]
        parent = draw(st.sampled_from(free))
        token = draw(st.sampled_from([t for t in range(4) if t not in taken.get(parent, ())]))
        taken.setdefault(parent, set()).add(token)
        tokens.append(token)
        parents.append(parent)
    return tokens, parents


def walk(tokens, parents, choices):
    """Accepted rows and bonus, step by step over all rows."""
    path = [0]
    while True:
        children = [row for row in range(len(tokens)) if parents[row] == path[-1] and tokens[row] == choices[path[-1]]]
        if not children:
            return path, choices[path[-1]]
        path.append(children[0])


@st.composite
def judged(draw, rows: int):
    """A draft and the target's choice at every row, more often than not one of the row's children."""
    tokens, parents = draw(drafts(rows))
    choices = []
    for row in range(rows):
        children = [token for token, parent in zip(tokens, parents, strict=True) if parent == row]
        choices.append(draw(st.sampled_from([*children, *children, *children, 0, 1, 2, 3])))
    return tokens, parents, choices


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 14).flatmap(lambda rows: st.lists(judged(rows), min_size=1, max_size=3)))
def test_accept_is_the_naive_walk(batch):
    tokens, parents, choices = (torch.tensor(column) for column in zip(*batch, strict=True))
    logits = torch.nn.functional.one_hot(choices, 4).float()
    paths, bonuses = accept(tokens, parents, GreedyChoices(logits))
    assert list(zip(paths, bonuses, strict=True)) == [walk(*one) for one in batch]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 14).flatmap(lambda rows: st.tuples(st.lists(judged(rows), min_size=1, max_size=3), st.integers(1, rows))))
def test_a_walk_as_tensors_is_the_naive_one_up_to_the_longest(batch_and_longest):
    batch, longest = batch_and_longest
    tokens, parents, choices = (torch.tensor(column) for column in zip(*batch, strict=True))
    path, kept, bonus = walk_of_choices(tokens, parents, choices, longest)
    for request, one in enumerate(batch):
        rows = walk(*one)[0][:longest]
        assert path[request].tolist() == rows + list(range(len(rows), longest))
        assert int(kept[request]) == len(rows) and int(bonus[request]) == one[2][rows[-1]]
    assert all(column.dtype == torch.int64 for column in (path, kept, bonus))


def test_of_equal_children_the_last_is_accepted():
    tokens, parents = torch.tensor([[0, 7, 7, 8]]), torch.tensor([[-1, 0, 0, 1]])
    assert accept(tokens, parents, lambda *_: 7) == ([[0, 2]], [7])
    path, kept, bonus = walk_of_choices(tokens, parents, torch.full((1, 4), 7), 3)
    assert (path.tolist(), kept.tolist(), bonus.tolist()) == ([[0, 2, 2]], [2], [7])


def test_the_first_of_equal_logits_is_chosen_and_nan_only_where_all_are():
    nan, infinity = torch.nan, torch.inf
    rows = [[0.0, 3.0, 3.0], [nan, 1.0, 1.0], [nan, -infinity, nan], [nan, nan, nan], [-0.0, 0.0, -1.0], [1.0, nan, infinity]]
    assert greedy_rows(torch.tensor([rows])).tolist() == [[1, 1, 1, 0, 0, 2]]


def test_only_rows_on_the_path_are_asked_and_with_their_depth():
    asked = []

    def choose(request, row, depth):
        asked.append((request, row, depth))
        return {0: 5, 2: 6, 3: 9}[row]

    #                    root, children 4 and 5, child 6 of the second, child 6 of the first
    paths, bonuses = accept(torch.tensor([[1, 4, 5, 6, 6]]), torch.tensor([[-1, 0, 0, 2, 1]]), choose)
    assert (paths, bonuses) == ([[0, 2, 3]], [9]) and asked == [(0, 0, 0), (0, 2, 1), (0, 3, 2)]


def test_a_child_of_another_row_is_not_accepted():
    """Token 7 hangs below row 1 alone; the root's choice of 7 must not jump there."""
    paths, bonuses = accept(torch.tensor([[0, 3, 7]]), torch.tensor([[-1, 0, 1]]), lambda *_: 7)
    assert (paths, bonuses) == ([[0]], [7])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(0, 3), st.data())
def test_a_spine_only_tree_is_the_chain(drafted, bonus, data):
    """The target agrees with ``confirmed`` drafted tokens and then with none."""
    confirmed = data.draw(st.integers(0, len(drafted)))
    choices = [token if place < confirmed else (token + 1) % 4 for place, token in enumerate([*drafted, 0])]
    chain = DraftTree.chain(torch.tensor([bonus]), torch.tensor([drafted]), torch.zeros(1, len(drafted)))
    logits = torch.nn.functional.one_hot(torch.tensor([choices]), 4).float()
    assert accept(chain.tokens, chain.parents, GreedyChoices(logits)) == ([list(range(confirmed + 1))], [choices[confirmed]])
    assert chain.depths.tolist() == [list(range(len(drafted) + 1))]


def test_decoding_by_spines_is_decoding_by_chains():
    """The same right tokens drafted as a tree without siblings, and among siblings: the same tokens and rounds."""
    model = tiny_target()
    prompt = [1, 2, 3, 4, 5]
    truth = greedy(model, prompt, 40)
    spine, tree = (run(model, Oracle(model, truth, spoiled=spoiled), prompt, 40) for spoiled in (False, True))
    assert list(spine.tokens) == list(tree.tokens) == truth
    assert [r.accepted for r in spine.rounds] == [r.accepted for r in tree.rounds] and spine.rounds[0].width == 1
    assert max(r.width for r in tree.rounds) == 3


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=8),
    st.sampled_from([0.3, 0.7, 1.0, 2.0]),
    st.integers(0, 10),
    st.sampled_from([1.0, 0.9137, 0.5713, 0.1931, 1e-9]),
)
def test_probabilities_are_the_naive_ones(logits, temperature, top_k, top_p):
    found = probabilities(torch.tensor(logits), temperature, top_k, top_p)
    wanted = torch.tensor(naive_probabilities(logits, temperature, top_k, top_p), dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize("temperature", [1e-9, 1e-300, 5e-324])
def test_the_smallest_temperatures_take_the_best_token(temperature, top_k):
    assert probabilities(torch.tensor([1.0, 30.0, -5.0]), temperature, top_k).tolist() == [0, 1, 0]
    assert probabilities(torch.tensor([-2.0, -3.0, -2.0]), temperature, top_k).tolist() == [0.5, 0, 0.5]


def test_ties_at_the_kth_are_all_kept_and_ties_at_the_nucleus_go_to_the_smaller_id():
    assert (probabilities(torch.tensor([1.0, 2.0, 1.0, 0.0]), 1.0, 2) > 0).tolist() == [True, True, True, False]
    assert (probabilities(torch.zeros(4), 1.0, 0, 0.5) > 0).tolist() == [True, True, False, False]


LAST = 1 - 2**-53  # the largest number that torch.rand gives in fp64


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-300, 1)), min_size=1, max_size=9).filter(any),
    st.one_of(st.sampled_from([0.0, LAST]), st.floats(0, LAST)),
)
def test_draw_never_picks_what_cannot_be(weights, uniform):
    chances = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    assert chances[int(draw(chances, torch.tensor(uniform, dtype=torch.float64)))] > 0 or chances.sum() == 0


def test_draw_inverts_the_cumulative_distribution():
    chances = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    uniforms = torch.tensor([0.0, 0.249, 0.25, 0.749, 0.75, LAST], dtype=torch.float64)
    assert draw(chances.expand(6, 6), uniforms).tolist() == [1, 1, 3, 3, 4, 4]


def test_a_sample_uses_the_number_of_its_own_position():
    logits = torch.zeros(2, 3, 4)
    uniforms = torch.tensor([[0.1, 0.3, 0.6], [0.9, 0.6, 0.3]], dtype=torch.float64)
    choose = SampledChoices(logits, uniforms, 1.0, 0, 1.0)
    assert [choose(request, 0, depth) for request in range(2) for depth in range(3)] == [0, 1, 2, 3, 2, 1]


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_sampled_rows_are_read_at_their_own_row(temperature):
    logits = torch.full((1, 3, 4), -1000.0)
    logits[0, [0, 1, 2], [3, 1, 2]] = 1000.0
    choose = SampledChoices(logits, torch.full((1, 3), 0.5, dtype=torch.float64), temperature, 0, 1.0)
    assert [choose(0, row, 0) for row in range(3)] == [3, 1, 2]
