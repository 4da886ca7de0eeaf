"""How many rows of a tree are verified: what brute force over the formula finds, at any costs."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tree import slot_logits

from harness.engines.torch.tree_size import CostTable, TreeSize, contexts_to
from kernels import best_first_tree
from strategies.base import DraftTree

LADDER = (2, 3, 5, 9, 17, 33)
CPU = torch.device("cpu")
COST = st.floats(1e-4, 10.0)


def table(round_s: dict[int, list[float]], draft_s: float = 0.0) -> CostTable:
    """``round_s`` holds a cost for each size, by context."""
    sizes = LADDER[: len(next(iter(round_s.values())))]
    verify_s = tuple(tuple(cost - draft_s for cost in costs) for costs in round_s.values())
    return CostTable(1, tuple(round_s), sizes, (draft_s,) * len(round_s), verify_s)


def picked(tree: DraftTree, costs: CostTable, lengths) -> int:
    size = TreeSize(LADDER, costs.contexts, CPU)
    size.learn(costs)
    size.pick(tree, torch.tensor(lengths))
    return size.picked()


@st.composite
def costs(draw) -> CostTable:
    contexts = sorted(draw(st.sets(st.integers(1, 5000), min_size=1, max_size=3)))
    sizes = draw(st.integers(1, len(LADDER)))
    rows = tuple(tuple(draw(COST) for _ in range(sizes)) for _ in contexts)
    return CostTable(1, tuple(contexts), LADDER[:sizes], tuple(draw(COST) for _ in contexts), rows)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_pick_promises_the_most_tokens_a_second(data):
    batch = data.draw(st.integers(1, 3))
    tree = DraftTree(*best_first_tree(torch.arange(batch), data.draw(slot_logits(batch=batch)), LADDER[-1] - 1))
    measured, lengths = data.draw(costs()), data.draw(st.lists(st.integers(0, 6000), min_size=batch, max_size=batch))

    def tokens_a_second(column: int) -> float:
        chances = [numpy.exp(logprobs[1 : measured.rows[column]].double()).sum() for logprobs in tree.logprobs]
        spent = [draft + row[column] for draft, row in zip(measured.draft_s, measured.verify_s)]
        return sum(1 + float(chance) for chance in chances) / numpy.interp(max(lengths), measured.contexts, spent)

    found = measured.rows.index(picked(tree, measured, lengths))
    assert tokens_a_second(found) >= (1 - 1e-9) * max(map(tokens_a_second, range(len(measured.rows))))


@settings(max_examples=100, deadline=None)
@given(slot_logits(batch=2), st.integers(1, 30))
def test_a_cut_tree_is_the_best_tree_of_its_size(logits, nodes):
    bonus = torch.tensor([1, 2])
    cut = DraftTree(*best_first_tree(bonus, logits, 40)).first(nodes + 1)
    whole = DraftTree(*best_first_tree(bonus, logits, nodes))
    for name in ("tokens", "parents", "depths", "logprobs"):
        assert torch.equal(getattr(cut, name), getattr(whole, name))
        assert getattr(cut, name).is_contiguous()


@pytest.fixture
def tree() -> DraftTree:
    """Two tokens a slot, each of a chance of a half: 2, 3, 5, 9, 17 rows promise 1.5, 2, 2.5, 3.25 and 4.125 tokens."""
    return DraftTree(*best_first_tree(torch.tensor([0]), torch.zeros(1, 4, 2), LADDER[-1] - 1))


def test_dear_rows_make_small_trees_and_free_ones_large(tree):
    assert picked(tree, table({256: [float(rows) for rows in LADDER]}), [10]) == LADDER[0]
    assert picked(tree, table({256: [1.0] * len(LADDER)}), [10]) == 33
    assert picked(tree, table({256: [1.0] * 3}), [10]) == LADDER[2], "the largest that was measured"


def test_a_dear_draft_makes_trees_larger(tree):
    rows = [1 + rows / 10 for rows in LADDER]
    cheap, dear = (picked(tree, table({256: [draft + cost for cost in rows]}, draft), [10]) for draft in (0.0, 10.0))
    assert cheap < dear


def test_the_cost_is_that_of_the_longest_context_of_the_batch(tree):
    near, far = [1.0] * len(LADDER), [float(rows) for rows in LADDER]
    measured = table({256: near, 1024: far})
    both = DraftTree(*(getattr(tree, name).repeat(2, 1) for name in ("tokens", "parents", "depths", "logprobs")))
    assert [picked(both, measured, lengths) for lengths in ([0, 256], [1024, 3], [5000, 5000])] == [33, 2, 2]
    # A tenth of the way the sizes cost 1.1, 1.2, 1.4, 1.8 and 2.6, a fifth of it 1.2, 1.4, 1.8, 2.6 and 4.2.
    assert [picked(tree, measured, [256 + way]) for way in (77, 154)] == [9, 3]


def test_until_it_learns_what_rounds_cost_trees_stay_whole(tree):
    size = TreeSize(LADDER, (256,), CPU)
    size.pick(tree, torch.tensor([3]))
    assert size.picked() == LADDER[-1]


@pytest.mark.parametrize(
    "reach, most, contexts",
    [(5, 8192, (256,)), (256, 8192, (256,)), (257, 8192, (256, 1024)), (9000, 8192, (256, 1024, 4096, 8192)), (100, 200, (200,)),
     (1700, 1700, (256, 1024, 1700))],
)  # fmt: skip
def test_contexts_cover_what_requests_reach(reach, most, contexts):
    assert contexts_to(reach, most) == contexts


def test_tables_of_other_contexts_join_in_their_order():
    joined = table({1024: [3.0, 4.0]}).joined(table({256: [1.0, 2.0], 4096: [5.0, 6.0]}))
    assert joined.contexts == (256, 1024, 4096) and joined.round_s() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def test_what_a_context_adds_is_linear_in_the_rows_between_those_that_were_timed():
    """2, 3, 5, 9 rows cost 1, 1, 4, 2 near. Far, 2 rows cost 1 more and 9 rows 8 more: so 3 rows 2 more and 5 rows 4 more."""
    far = CostTable(1, (1024,), (2, 9), (0.5,), ((2.0, 10.0),))
    assert table({256: [1.0, 1.0, 4.0, 2.0]}).joined(far).verify_s == ((1.0, 1.0, 4.0, 2.0), pytest.approx((2.0, 3.0, 8.0, 10.0)))
