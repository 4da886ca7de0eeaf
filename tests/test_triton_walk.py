"""Masks, acceptance, commit and arg-max by Triton's kernels are the references'."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import DEVICE

from kernels import acceptance, cache, chains, outcome, sampling
from kernels import masks as references
from kernels.triton_kernels import commit, greedy, masks, walk
from kernels.triton_kernels import chains as chain_kernels
from kernels.triton_kernels import outcome as outcome_kernels


@st.composite
def trees(draw, most):
    """``[batch, rows]`` of tokens, parents and choices over a small vocabulary; equal siblings happen."""
    batch, rows = draw(st.integers(1, 3)), draw(st.integers(1, most))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    near = draw(st.sampled_from([1, 3, rows]))  # 1: a chain
    parents = [[-1] + [draw(st.integers(max(0, row - near), row - 1)) for row in range(1, rows)] for _ in range(batch)]
    vocab = draw(st.integers(1, 4))
    tokens, chosen = torch.randint(vocab, (2, batch, rows), generator=generator)
    return tokens.to(DEVICE), torch.tensor(parents, device=DEVICE), chosen.to(DEVICE)


@settings(max_examples=60, deadline=None)
@given(trees(most=20), st.data())
def test_a_walk_is_the_references(tree, data):
    tokens, parents, chosen = tree
    longest = data.draw(st.integers(1, tokens.shape[1]))
    found, wanted = walk.walk(tokens, parents, chosen, longest), acceptance.walk(tokens, parents, chosen, longest)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == torch.int64 and torch.equal(ours, theirs)


@pytest.mark.parametrize("rows", [33, 64, 65, 513])
def test_a_walk_to_the_last_row_of_a_chain(rows):
    tokens = torch.arange(rows, device=DEVICE)[None]
    path, kept, bonus = walk.walk(tokens, tokens - 1, tokens + 1, rows)
    assert path[0].tolist() == list(range(rows)) and kept.tolist() == [rows] and bonus.tolist() == [rows]


def test_a_path_longer_than_its_tree_is_refused():
    rows = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="longest 5"):
        walk.walk(rows, rows, rows, 5)


def settled(settle, tree, longest, reach, device):
    """All that ``settle`` returns and writes; of a report's tokens those that mean something."""
    tokens, parents, chosen = (each.cpu() for each in tree)
    depths = torch.zeros_like(parents)
    for row in range(1, tokens.shape[1]):
        depths[:, row] = 1 + depths.gather(1, parents[:, row : row + 1])[:, 0]
    walked = acceptance.walk(tokens, parents, chosen, longest)
    batch = len(tokens)
    lengths, given, last = torch.arange(batch) + 4, torch.arange(batch) + 1, torch.full((batch,), -7)
    report = torch.full((batch, outcome.TOLD + longest + 2), -9)
    asked = [each.to(device) for each in (tokens, depths, *walked, lengths)]
    written = [each.to(device) for each in (given, last, report)]
    accepted, kept = settle(*asked, reach, *written)
    given, last, report = (each.cpu() for each in written)
    gave = [row[outcome.TOLD :][:count].tolist() for row, count in zip(report, kept.tolist(), strict=True)]
    assert (report[:, outcome.TOLD + longest :] == -9).all()
    return accepted.tolist(), kept.tolist(), given.tolist(), last.tolist(), report[:, : outcome.TOLD].tolist(), gave


@settings(max_examples=60, deadline=None)
@given(trees(most=20), st.data())
def test_the_end_of_a_round_is_the_references_and_what_a_reader_counts(tree, data):
    longest, reach = data.draw(st.integers(1, tree[0].shape[1])), data.draw(st.integers(3, 7))
    found = settled(outcome_kernels.settle, tree, longest, reach, DEVICE)
    assert found == settled(outcome.settle, tree, longest, reach, "cpu")
    paths, bonuses = acceptance.accept(tree[0], tree[1], lambda request, row, depth: int(tree[2][request, row]))
    for request, (path, told, gave) in enumerate(zip(paths, *found[-2:], strict=True)):
        parents, depths = tree[1][request].tolist(), [0]
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
        kept = min(len(path), longest) if 4 + request <= reach else 0
        width = max((depths.count(depth) for depth in range(1, max(depths) + 1)), default=0)
        assert told == [kept, len(parents) - 1, max(depths), width] and found[2][request] == 1 + request + kept
        if len(path) <= longest:
            assert gave == [*(int(tree[0][request, row]) for row in path[1:]), bonuses[request]][:kept]


@pytest.mark.parametrize("rows, longest", [(513, 16), (1025, 3)])
def test_the_end_of_a_round_of_wide_trees(rows, longest):
    torch.manual_seed(rows)
    parents = torch.arange(-1, rows - 1).clamp(max=longest - 2)[None]
    tree = torch.randint(9, (1, rows)).to(DEVICE), parents.to(DEVICE), torch.randint(9, (1, rows)).to(DEVICE)
    found = settled(outcome_kernels.settle, tree, longest, 9, DEVICE)
    assert found == settled(outcome.settle, tree, longest, 9, "cpu") and found[4][0][1:] == [rows - 1, longest - 1, rows - longest + 1]


def test_a_bonus_token_may_stand_where_the_tree_of_a_root_reads_it():
    last = torch.tensor([5, 6], device=DEVICE)
    zeros = torch.zeros(2, 1, dtype=torch.int64, device=DEVICE)
    ones = torch.ones(2, dtype=torch.int64, device=DEVICE)
    for settle in (outcome.settle, outcome_kernels.settle) if DEVICE == "cpu" else (outcome_kernels.settle,):
        own, report = last.clone(), torch.zeros(2, 5, dtype=torch.int64, device=DEVICE)
        accepted, _ = settle(own[:, None], zeros, zeros, ones, last + 2, ones, 9, ones.clone(), own, report)
        assert accepted.tolist() == [[5], [6]] and own.tolist() == [7, 8] and report.tolist() == [[1, 0, 0, 0, 7], [1, 0, 0, 0, 8]]


@settings(max_examples=40, deadline=None)
@given(trees(most=24))
def test_ancestors_are_the_references(tree):
    parents = tree[1]
    assert torch.equal(masks.ancestor_bits(parents), references.ancestor_bits(parents))


@pytest.mark.parametrize("rows", [63, 64, 65, 129, 513])
def test_ancestors_in_several_words(rows):
    torch.manual_seed(rows)
    parents = (torch.rand(2, rows) * torch.arange(rows)).long() - (torch.arange(rows) == 0).long()
    parents[1] = torch.arange(rows) - 1 if rows < 100 else parents[0].clamp(max=3)
    parents = parents.to(DEVICE)
    bits = masks.ancestor_bits(parents)
    assert bits.shape == (2, rows, -(-rows // 64)) and torch.equal(bits, references.ancestor_bits(parents))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_kept_rows_are_the_references(data):
    batch, longest, head_dim = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 7)), data.draw(st.sampled_from([8, 12]))
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32]))
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, 5), min_size=batch, max_size=batch)), device=DEVICE)
    path = torch.stack([torch.randperm(12)[:longest].sort().values for _ in range(batch)]).to(DEVICE)
    caches = torch.randn(2, 2, batch, 2, 17, head_dim, device=DEVICE).to(dtype)
    wanted = caches.cpu().clone()
    cache.keep_rows(wanted, lengths.cpu(), path.cpu())
    commit.keep_rows(caches, lengths, path)
    assert torch.equal(caches.cpu(), wanted)


def test_rows_are_kept_in_caches_that_are_parts_of_a_larger_one():
    torch.manual_seed(0)
    whole = torch.randn(3, 2, 4, 2, 20, 8, device=DEVICE)
    wanted, lengths, path = whole.cpu().clone(), torch.tensor([2, 0]), torch.tensor([[0, 2, 3, 7]] * 2)
    cache.keep_rows(wanted[1:, :, 1:3], lengths, path)
    commit.keep_rows(whole[1:, :, 1:3], lengths.to(DEVICE), path.to(DEVICE))
    assert torch.equal(whole.cpu(), wanted)


@st.composite
def rows_of_logits(draw):
    batch, rows, vocab = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    values = st.sampled_from([0.0, -0.0, 1.0, -1.0, torch.nan, torch.inf, -torch.inf])
    numbers = draw(st.lists(values, min_size=batch * rows * vocab, max_size=batch * rows * vocab))
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float32, torch.float16]))
    return torch.tensor(numbers, device=DEVICE).view(batch, rows, vocab).to(dtype)


@settings(max_examples=80, deadline=None)
@given(rows_of_logits())
def test_the_arg_max_is_the_references(logits):
    assert torch.equal(greedy.greedy_rows(logits), acceptance.greedy_rows(logits))


@pytest.mark.parametrize("programs", [1, 8, 1024])
def test_the_arg_max_over_stretches_of_a_large_vocabulary(programs, monkeypatch):
    """The best value at several ids: in one block, in several blocks of one stretch, in several stretches."""
    monkeypatch.setattr(greedy, "_PROGRAMS", programs)
    torch.manual_seed(0)
    logits = torch.randn(1, 3, 7001, device=DEVICE).bfloat16()
    logits[0, :, [300, 1999, 300 + 2048, 7000]] = 9.0
    logits[0, 0, 300], logits[0, 1, 300:7000] = torch.nan, 0.0
    assert greedy.greedy_rows(logits).tolist() == [[1999, 7000, 300]]


@pytest.mark.parametrize("programs", [1, 1024])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocab", [1, 300, 7001])
def test_the_likeliest_token_and_its_log_probability_are_the_references(vocab, dtype, programs, monkeypatch):
    monkeypatch.setattr(greedy, "_PROGRAMS", programs)
    torch.manual_seed(vocab)
    logits = (20 * torch.randn(2, 3, vocab + 1, device=DEVICE)).to(dtype)[..., :vocab]
    logits[0, 1, vocab // 2 :] = -torch.inf
    logits[0, 2] = 0.0
    if vocab > 1:
        logits[1, 2, [1, -1]] = 99.0
    ids, logprobs = greedy.likeliest_with_logprob(logits)
    wanted = logits.float().log_softmax(dim=-1)
    assert torch.equal(ids, acceptance.greedy_rows(logits)) and logprobs.dtype == torch.float32
    if vocab == 1:
        wanted[0, 1] = logprobs[0, 1] = 0.0  # nothing is possible there
    torch.testing.assert_close(logprobs, wanted.amax(dim=-1), rtol=1e-5, atol=1e-5)
    assert logprobs.max() <= 0
    found = sampling.likeliest_with_logprob(logits)
    assert torch.equal(found[0], ids)


@pytest.mark.parametrize("batch, drafted", [(1, 1), (3, 7), (2, 16), (2, 0)])
def test_the_columns_of_a_chain_are_the_references(batch, drafted):
    torch.manual_seed(drafted)
    bonus, tokens, logprobs = torch.arange(batch), torch.randint(99, (drafted, batch)).T, -torch.rand(batch, drafted)
    found = chain_kernels.chain_columns(bonus.to(DEVICE), tokens.to(DEVICE), logprobs.to(DEVICE))
    wanted = chains.chain_columns(bonus, tokens, logprobs)
    assert wanted[0].tolist() == [[first, *rest] for first, rest in zip(bonus.tolist(), tokens.tolist(), strict=True)]
    assert torch.equal(found[0].cpu(), wanted[0])
    torch.testing.assert_close(found[1].cpu(), wanted[1])


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_the_tokens_that_follow_are_the_references(rows):
    tokens, bonus = torch.arange(12).view(2, 6).repeat(2, 1)[:, :rows], torch.tensor([90, 91, 92, 93])
    counts = torch.tensor([rows, 1, 0, (rows + 1) // 2])
    found = chain_kernels.following_tokens(tokens.to(DEVICE), counts.to(DEVICE), bonus.to(DEVICE))
    wanted = chains.following_tokens(tokens, counts, bonus)
    for request, count in enumerate(counts.clamp(min=1).tolist()):
        for following, last in (found, wanted):
            assert following[request, :count].tolist() == [*tokens[request, 1:count].tolist(), 90 + request]
            assert int(last[request]) == count - 1
