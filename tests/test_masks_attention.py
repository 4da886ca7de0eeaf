"""One masked pass over a tree says what a plain pass over each path says, and the cache forgets the losers."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoding import causal_logits, tiny_config, tiny_target

from harness.models.layer_cache import ModelCache, RecurrentCache
from kernels import (
    Rows,
    ancestor_bits,
    ancestor_mask,
    attention,
    causal_mask,
    keep_rows,
    row_mask,
    unpack_bits,
    visible_rows,
    write_rows,
)
from kernels.rows import visible_columns


@st.composite
def trees(draw, most=12) -> list[int]:
    """Parents of a tree of 1 to ``most`` rows, the root first."""
    return [-1] + [draw(st.integers(0, row - 1)) for row in range(1, draw(st.integers(1, most)))]


def path_to(parents: list[int], row: int) -> list[int]:
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def random_tree(rows: int, vocabulary: int, seed: int):
    """Tokens, parents and depths of a random tree."""
    source = random.Random(seed)
    parents = [-1] + [source.randrange(row) for row in range(1, rows)]
    tokens = [source.randrange(vocabulary) for _ in range(rows)]
    return tokens, parents, [len(path_to(parents, row)) - 1 for row in range(rows)]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12).flatmap(lambda rows: st.tuples(trees(rows), trees(rows))))
def test_ancestor_mask_is_the_walk_to_the_root(two):
    rows = min(map(len, two))
    batch = [parents[:rows] for parents in two]
    mask = ancestor_mask(torch.tensor(batch))
    assert mask.dtype == torch.bool and mask.shape == (2, rows, rows)
    for request, parents in enumerate(batch):
        for row in range(rows):
            assert mask[request, row].nonzero().flatten().tolist() == sorted(path_to(parents, row))


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 130])
def test_ancestor_bits_are_the_walk_to_the_root_in_words_of_64(rows):
    batch = [random_tree(rows, 4, seed)[1] for seed in range(3)]
    bits = ancestor_bits(torch.tensor(batch))
    assert bits.dtype == torch.int64 and bits.shape == (3, rows, -(-rows // 64))
    unpacked = unpack_bits(bits, rows)
    assert unpacked.dtype == torch.bool and unpacked.shape == (3, rows, rows)
    for request, parents in enumerate(batch):
        for row in range(rows):
            path = sorted(path_to(parents, row))
            words = [sum(1 << place % 64 for place in path if place // 64 == word) for word in range(bits.shape[2])]
            assert [word % 2**64 for word in bits[request, row].tolist()] == words
            assert unpacked[request, row].nonzero().flatten().tolist() == path


def test_every_row_sees_the_whole_context_before_the_tree():
    mask = visible_rows(torch.tensor([[[True, False], [True, True]]]), 3)
    assert mask.tolist() == [[[True, True, True, True, False], [True, True, True, True, True]]]


def naive_attention(queries, keys, values, seen):
    """Softmax over one row of one head at a time; head h of H reads key/value head h * kv_heads // H."""
    batch, heads, rows, width = queries.shape
    kv_heads = keys.shape[1]
    out = torch.empty(batch, rows, heads * width)
    for b in range(batch):
        for h in range(heads):
            for r in range(rows):
                columns = [c for c in range(keys.shape[2]) if seen(b, r, c)]
                kv = h * kv_heads // heads
                scores = torch.stack([queries[b, h, r] @ keys[b, kv, c] / width**0.5 for c in columns])
                mixed = sum(w * values[b, kv, c] for w, c in zip(scores.softmax(0), columns, strict=True))
                out[b, r, h * width : (h + 1) * width] = mixed
    return out


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("kind", ["masked", "all", "causal"])
def test_grouped_attention_is_softmax_row_by_row(heads, kv_heads, kind):
    torch.manual_seed(0)
    rows, length = (5, 5) if kind == "causal" else (3, 7)
    queries = torch.randn(2, heads, rows, 8)
    keys, values = torch.randn(2, 2, kv_heads, length, 8)
    visible = None
    if kind == "masked":
        visible = torch.rand(2, rows, length) < 0.5
        visible[..., 0] = True
    seen = {"all": lambda b, r, c: True, "causal": lambda b, r, c: c <= r, "masked": lambda b, r, c: bool(visible[b, r, c])}
    found = attention(queries, keys, values, visible, causal=kind == "causal")
    torch.testing.assert_close(found, naive_attention(queries, keys, values, seen[kind]), rtol=1e-5, atol=1e-6)


def prefilled(model, contexts, capacity=64):
    """A cache that has committed ``contexts``, one a request."""
    cache = model.new_cache(len(contexts), capacity)
    cache.attention += 50.0  # what was never written must never be read
    lengths = torch.tensor([len(context) for context in contexts])
    tokens = torch.tensor([context + [0] * (max(lengths) - len(context)) for context in contexts])
    model(tokens, torch.arange(tokens.shape[1]).expand_as(tokens), cache)
    cache.lengths += lengths
    return cache


def verified(model, cache, trees_of_batch):
    """One masked pass over ``(tokens, parents, depths)`` of each request; its logits and features."""
    tokens, parents, depths = (torch.tensor(column) for column in zip(*trees_of_batch, strict=True))
    rows = Rows(cache.lengths, row_mask(parents))
    hidden, features = model(tokens, cache.lengths[:, None] + depths, cache, rows, taps=(0, 2))
    return model.logits(hidden), features


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_a_masked_pass_gives_each_path_its_own_logits(family, seed):
    model = tiny_target(tiny_config(family), seed)
    source = random.Random(seed)
    contexts = [[source.randrange(48) for _ in range(length)] for length in (9, 4)]
    batch = [random_tree(14, 48, seed + 100 * request) for request in range(2)]
    logits, _ = verified(model, prefilled(model, contexts), batch)
    for request, (tokens, parents, _) in enumerate(batch):
        for row in range(14):
            path = [tokens[i] for i in path_to(parents, row)]
            plain = causal_logits(model, contexts[request] + path)[-1]
            torch.testing.assert_close(logits[request, row], plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.no_grad()
def test_keep_leaves_the_cache_of_a_model_that_saw_only_the_accepted_tokens(family):
    model = tiny_target(tiny_config(family))
    contexts = [[3, 1, 4, 1, 5], [9, 2]]
    #          0: root, 1-3 children of the root, 4-5 children of 2, 6 child of 3, 7 child of 5
    parents, depths = [-1, 0, 0, 0, 2, 2, 3, 5], [0, 1, 1, 1, 2, 2, 2, 3]
    tokens = [list(range(10, 18)), list(range(20, 28))]
    paths = [[0, 2, 5], [0, 3]]
    cache = prefilled(model, contexts)
    verified(model, cache, [(row, parents, depths) for row in tokens])
    cache.keep(torch.tensor([[0, 2, 5], [0, 3, 2]]), torch.tensor([3, 2]))
    accepted = [context + [row[i] for i in path] for context, row, path in zip(contexts, tokens, paths, strict=True)]
    fresh = prefilled(model, accepted)
    assert cache.lengths.tolist() == fresh.lengths.tolist() == [8, 4]
    for request, length in enumerate([8, 4]):
        found, wanted = (each.attention[:, :, request, :, :length] for each in (cache, fresh))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    # The losers' rows lie behind; the next round must not see them.
    logits, _ = verified(model, cache, [([7, 8, 9], [-1, 0, 0], [0, 1, 1])] * 2)
    for request in range(2):
        for row, path in enumerate([[7], [7, 8], [7, 9]]):
            plain = causal_logits(model, accepted[request] + path)[-1]
            torch.testing.assert_close(logits[request, row], plain, rtol=1e-4, atol=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_keep_rows_moves_any_path(data):
    rows = data.draw(st.integers(1, 6))
    lengths = [data.draw(st.integers(0, 6)) for _ in range(2)]
    paths = [sorted(data.draw(st.permutations(range(rows)))[:kept]) for kept in [data.draw(st.integers(1, rows))] for _ in range(2)]
    caches = torch.arange(3 * 2 * 12).view(3, 2, 1, 12, 1).clone()
    wanted = caches.clone()
    for request, (start, path) in enumerate(zip(lengths, paths, strict=True)):
        for place, row in enumerate(path):
            wanted[:, request, 0, start + place] = caches[:, request, 0, start + row]
    keep_rows(caches, torch.tensor(lengths), torch.tensor(paths))
    assert torch.equal(caches, wanted)


def test_write_rows_puts_each_requests_rows_behind_its_own():
    cache, new = torch.zeros(2, 1, 6, 1), torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(2, 1, 2, 1)
    write_rows(cache, torch.tensor([1, 4]), new)
    assert cache.flatten(1).tolist() == [[0, 1, 2, 0, 0, 0], [0, 0, 0, 0, 3, 4]]


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_hides_what_is_too_far(causal):
    """Row i stands at its request's length + i; it sees what is closer than 3, of its own rows those before it or all."""
    rows = Rows(torch.tensor([4, 1]), causal_mask(2, 3, "cpu") if causal else None, window=3)
    for request, length in enumerate([4, 1]):
        for row, seen in enumerate(visible_columns(rows, 3, 7)[request]):
            own, last = length + row, length + (row if causal else 2)
            assert seen.nonzero().flatten().tolist() == [c for c in range(last + 1) if abs(own - c) < 3]


class ToyRecurrence:
    """state' = decay * state + input(token): the smallest layer whose state cannot be cropped."""

    def __init__(self, batch: int) -> None:
        self.cache = RecurrentCache(torch.zeros(batch, 2))

    @staticmethod
    def step(state, token: int):
        return state * torch.tensor([0.5, -0.9]) + torch.tensor([float(token), token % 3 + 1.0])

    def verify(self, tokens, parents) -> None:
        states = []
        for request, (row_tokens, row_parents) in enumerate(zip(tokens, parents, strict=True)):
            rows = []
            for token, parent in zip(row_tokens, row_parents, strict=True):
                rows.append(self.step(self.cache.state[request] if parent < 0 else rows[parent], token))
            states.append(torch.stack(rows))
        self.cache.row_states = torch.stack(states)


@pytest.mark.parametrize("paths", [[[0, 2, 5], [0, 3, 6]], [[0, 1, 2], [0, 1, 2]], [[0], [0]]])
@pytest.mark.parametrize("stays", [0, 1])
def test_a_recurrent_state_is_that_of_the_last_accepted_row(paths, stays):
    """Beside an attention layer, through the same call; the second request keeps its root alone, or nothing and its state."""
    layer = ToyRecurrence(2)
    cache = ModelCache(torch.zeros(1, 2, 2, 1, 20, 2), [layer.cache])
    chain = [-1, 0, 1, 2, 3, 4, 5, 6] if paths[0] == [0, 1, 2] else [-1, 0, 0, 0, 2, 2, 3, 5]
    seen = [[], []]
    for first in (10, 20):
        tokens = [list(range(first, first + 8)), list(range(first + 50, first + 58))]
        layer.verify(tokens, [chain, chain])
        cache.keep(torch.tensor(paths), torch.tensor([len(paths[0]), stays and 1]))
        for request in range(2):
            seen[request] += [tokens[request][row] for row in paths[request]][: len(paths[0]) if request == 0 else stays]
    for request in range(2):
        state = torch.zeros(2)
        for token in seen[request]:
            state = layer.step(state, token)
        torch.testing.assert_close(layer.cache.state[request], state)
    assert cache.lengths.tolist() == list(map(len, seen)) and layer.cache.row_states is None



def test_each_request_keeps_its_own_rows_in_every_layer():
    """Row by row, lengths and paths that differ; all else stays, rows that another one overwrites are read before."""
    torch.manual_seed(0)
    caches = torch.randn(3, 2, 2, 2, 12, 4)
    before = caches.clone()
    lengths, path = torch.tensor([2, 5]), torch.tensor([[0, 2, 3, 6], [1, 2, 3, 4]])
    keep_rows(caches, lengths, path)
    wanted = before.clone()
    for request in range(2):
        for place in range(4):
            source = int(lengths[request] + path[request, place])
            wanted[:, :, request, :, int(lengths[request]) + place] = before[:, :, request, :, source]
    assert torch.equal(caches, wanted)
