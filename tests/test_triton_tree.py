"""Draft trees made by Triton's kernels are the references', row for row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import DEVICE

from kernels import tree as reference
from kernels.triton_kernels import candidates, grow, levels


@st.composite
def slot_logits(draw, vocab, slots=st.integers(1, 4)):
    """``[batch, slots, vocab]`` of few distinct values, of bf16 numbers, or free."""
    batch, slots, vocab = draw(st.integers(1, 2)), draw(slots), draw(vocab)
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float32, torch.float16]))
    kind = draw(st.sampled_from(["tied", "impossible", "rounded", "free"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logits = torch.randn(batch, slots, vocab, generator=generator) * draw(st.sampled_from([0.3, 2.0, 8.0]))
    if kind in ("tied", "impossible"):
        logits = logits.round().clamp(-2, 2)
    if kind == "impossible":
        logits[logits == 1] = -torch.inf
        logits[..., 0] = logits[..., 0].clamp(min=-2)
    if kind == "rounded":
        logits = logits.bfloat16().float()
    return logits.to(dtype).to(DEVICE)


def ranked(logits, width):
    """``kernels.tree``'s candidates, made on the CPU."""
    logprobs, ids = reference.ranked_candidates(logits.cpu(), width)
    return logprobs.to(DEVICE), ids.to(DEVICE)


def grown(bonus, logprobs, ids, budget):
    """``kernels.tree`` from the same candidates."""
    rows = zip(bonus.tolist(), logprobs.cpu().numpy(), ids.tolist(), strict=True)
    trees = [reference._grow(root, scores, tokens, budget) for root, scores, tokens in rows]
    tokens, parents, depths, scores = (torch.tensor(column) for column in zip(*trees, strict=True))
    return tokens, parents, depths, scores.float()


def assert_same_tree(found, wanted):
    for name, ours, theirs in zip(("tokens", "parents", "depths", "log-probabilities"), found, wanted, strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours.cpu(), theirs), name


@settings(max_examples=30, deadline=None)
@given(slot_logits(st.integers(1, 40), slots=st.integers(1, 2)), st.data())
def test_candidates_are_the_references(logits, data):
    width = data.draw(st.integers(1, logits.shape[-1]))
    logprobs, ids = candidates.ranked_candidates(logits, width)
    wanted_logprobs, wanted_ids = ranked(logits, width)
    assert torch.equal(ids, wanted_ids) and ids.dtype == torch.int64
    torch.testing.assert_close(logprobs, wanted_logprobs, rtol=1e-6, atol=3e-6)
    assert logprobs.max() <= 0


@pytest.mark.parametrize("width, dtype", [(1, torch.bfloat16), (16, torch.float32), (100, torch.bfloat16), (512, torch.float32)])
def test_candidates_of_a_large_vocabulary_with_ties_at_the_edge(width, dtype):
    """Several stretches, the last not whole; slots cut out of a block; every value held by many ids, 0 with both signs."""
    torch.manual_seed(0)
    logits = (torch.randn(1, 2, 9001) * 2).round()
    logits = torch.where((logits == 0) & (torch.rand(logits.shape) < 0.5), -logits, logits).to(dtype).to(DEVICE)[:, 1:]
    logprobs, ids = candidates.ranked_candidates(logits, width)
    wanted_logprobs, wanted_ids = ranked(logits, width)
    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(logprobs, wanted_logprobs, rtol=1e-6, atol=3e-6)


def test_nan_leads_to_no_token_outside_the_vocabulary():
    logits = torch.randn(1, 2, 300, device=DEVICE)
    logits[0, 0, ::2], logits[0, 1] = torch.nan, torch.nan
    tokens, parents, depths, _ = grow.best_first_tree(torch.tensor([7], device=DEVICE), logits, 40)
    assert 0 <= tokens.min() and tokens.max() < 300
    assert (parents[0, 1:] < torch.arange(1, 41, device=DEVICE)).all() and parents[0, 1:].min() >= 0 and depths.max() <= 2


@settings(max_examples=60, deadline=None)
@given(slot_logits(st.integers(1, 30)), st.integers(1, 24))
def test_a_tree_grown_by_steps_is_the_heaps(logits, budget):
    bonus = torch.arange(len(logits), device=DEVICE) + 7
    logprobs, ids = ranked(logits, min(budget, logits.shape[-1]))
    assert_same_tree(grow.grow(bonus, logprobs, ids, budget), grown(bonus, logprobs, ids, budget))


@pytest.mark.parametrize("budget, slots, spread", [(128, 15, 3.0), (70, 1, 1.0), (33, 15, 0.0), (65, 2, 0.0)])
def test_entries_of_the_frontier_double_without_changing_places(budget, slots, spread):
    torch.manual_seed(budget)
    logits = (torch.randn(1, slots, 90, device=DEVICE) * spread).bfloat16()
    bonus = torch.tensor([3], device=DEVICE)
    logprobs, ids = ranked(logits, min(budget, 90))
    assert_same_tree(grow.grow(bonus, logprobs, ids, budget), grown(bonus, logprobs, ids, budget))


def test_sure_tokens_make_scores_equal_across_depths():
    """Log-probabilities of 0 below a choice: prefixes of one score at every depth, of which the smaller ranks come first."""
    logits = torch.zeros(1, 15, 40, device=DEVICE)
    logits[:, 1::2, 5] = 1000.0
    logits[:, ::2, :3] = 30.0
    bonus = torch.tensor([3], device=DEVICE)
    logprobs, ids = ranked(logits, 40)
    assert_same_tree(grow.grow(bonus, logprobs, ids, 40), grown(bonus, logprobs, ids, 40))


@pytest.fixture
def by_levels(monkeypatch):
    """Small trees grow like large ones, with few guesses; counts the trees for which a guess fitted and the others."""
    monkeypatch.setattr(grow, "STEPS", 4)
    monkeypatch.setattr(levels, "GUESSES", 4)
    monkeypatch.setattr(levels, "MOST", 64)
    seen = {True: 0, False: 0}
    find = levels.find

    def counted(logprobs, nodes):
        found = find(logprobs, nodes)
        for counts in found[-1].tolist():
            seen[any(nodes <= count <= levels.MOST for count in counts)] += 1
        return found

    monkeypatch.setattr(levels, "find", counted)
    return seen


def test_a_tree_found_by_levels_is_the_heaps(by_levels):
    @settings(max_examples=18, deadline=None)
    @given(slot_logits(st.integers(32, 40), slots=st.integers(1, 6)), st.integers(5, 32))
    def property_(logits, budget):
        bonus = torch.arange(len(logits), device=DEVICE) + 7
        logprobs, ids = ranked(logits, budget)
        assert_same_tree(grow.grow(bonus, logprobs, ids, budget), grown(bonus, logprobs, ids, budget))

    property_()
    assert by_levels[True] >= 5, by_levels


def test_a_tree_that_no_guess_finds_grows_by_steps(by_levels):
    """15 equal tokens in every slot: the 32nd prefix is one of 225 of the same score, more than are kept."""
    logits = torch.zeros(1, 3, 40, device=DEVICE)
    logits[..., 4:19] = 20.0
    bonus = torch.tensor([3], device=DEVICE)
    logprobs, ids = ranked(logits, 32)
    assert_same_tree(grow.grow(bonus, logprobs, ids, 32), grown(bonus, logprobs, ids, 32))
    assert by_levels == {True: 0, False: 1}


def test_equal_scores_found_by_levels_go_to_the_smaller_ranks(by_levels):
    """Within a depth the same sum along different paths; at several depths the same score, where a token is sure."""
    torch.manual_seed(0)
    logits = torch.randint(0, 3, (1, 6, 40), device=DEVICE).float()
    logits[0, 1::2, 5] = 1000.0
    bonus = torch.tensor([3], device=DEVICE)
    for budget in range(5, 40, 6):
        logprobs, ids = ranked(logits, budget)
        assert_same_tree(grow.grow(bonus, logprobs, ids, budget), grown(bonus, logprobs, ids, budget))
    assert by_levels[True] >= 3, by_levels


def test_a_large_tree(monkeypatch):
    """400 nodes, of which more than one block of parents and of children lies on a level."""
    monkeypatch.setattr(levels, "GUESSES", 8)
    torch.manual_seed(0)
    logits = torch.randn(1, 3, 600, device=DEVICE).bfloat16() * 3
    bonus = torch.tensor([3], device=DEVICE)
    logprobs, ids = ranked(logits, 400)
    counts = levels.find(logprobs, 400)[-1]
    assert ((counts >= 400) & (counts <= levels.MOST)).any()
    assert_same_tree(grow.grow(bonus, logprobs, ids, 400), grown(bonus, logprobs, ids, 400))


@pytest.mark.parametrize("budget", [1, 16, 40])
def test_the_tree_of_logits_is_the_references(budget):
    torch.manual_seed(budget)
    logits = torch.randn(2, 5, 1000, device=DEVICE) * 3
    bonus = torch.tensor([3, 4], device=DEVICE)
    found = [column.cpu() for column in grow.best_first_tree(bonus, logits, budget)]
    wanted = reference.best_first_tree(bonus.cpu(), logits.cpu(), budget)
    for ours, theirs in zip(found[:3], wanted[:3], strict=True):
        assert torch.equal(ours, theirs)
    torch.testing.assert_close(found[3], wanted[3], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("budget, slots", [(513, 3), (0, 3), (8, 16)])
def test_sizes_that_do_not_fit_are_refused(budget, slots):
    width = min(512, max(1, budget))
    with pytest.raises(ValueError, match=f"budget {budget}, slots {slots}"):
        grow.grow(torch.tensor([0]), torch.zeros(1, slots, width), torch.zeros(1, slots, width, dtype=torch.int64), budget)
