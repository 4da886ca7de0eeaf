"""The traps of speculative decoding that others fell into, each by its name."""

import time
from itertools import accumulate

import pytest
import torch
from tiny_decoding import Oracle, causal_logits, greedy, proposers, run, tiny_config, tiny_target

from harness.engines.torch.answers import Answer
from harness.records import Request, Sampling
from strategies.base import DraftTree, Proposer

pytestmark = pytest.mark.timeout(30)  # a loop that misses its end would never fail

PROMPT = [5, 6, 7, 8, 9, 10]
LONG = (15,)  # tokens that the oracle drafts a round


@pytest.fixture(scope="module")
def model():
    return tiny_target(tiny_config(vocab_size=300), seed=14)


@pytest.fixture(scope="module")
def truth(model):
    """The greedy continuation; it does not soon repeat a token, so every token can play the end token."""
    found = greedy(model, PROMPT, 60)
    assert len(set(found[:17])) == 17
    return found


@pytest.fixture
def arms(model, tmp_path):
    return proposers(model, tmp_path)


class Watched(Proposer):
    """Another proposer, with a record of what the loop gave it."""

    def __init__(self, inner: Proposer) -> None:
        self.inner, self.taps, self.max_rows, self.longest = inner, inner.taps, inner.max_rows, inner.longest
        self.commits: list[tuple[torch.Tensor, ...]] = []
        self.trees = []

    def reset(self, batch, capacity):
        self.commits, self.trees = [], []
        self.batch, self.capacity = batch, capacity
        self.inner.reset(batch, capacity)

    def commit(self, *told):
        self.commits.append(tuple(each.clone() for each in told))
        self.inner.commit(*told)

    def propose(self, bonus, lengths):
        self.trees.append(self.inner.propose(bonus, lengths))
        return self.trees[-1]

    @property
    def committed(self) -> torch.Tensor:
        """How many positions are committed."""
        return self.commits[-1][2] + self.commits[-1][3]


# 1. Counts


def test_the_bonus_token_is_not_among_the_accepted(model, truth):
    decoded = run(model, Oracle(model, truth, (3,)), PROMPT, 21)
    assert [(r.proposed - r.accepted > 0, r.accepted, r.emitted) for r in decoded.rounds] == [(True, 3, 4)] * 5


def test_the_baselines_rounds_accept_nothing_and_emit_one(model, arms):
    decoded = run(model, arms["baseline"], PROMPT, 10)
    assert [(r.proposed, r.accepted, r.emitted, r.depth, r.width) for r in decoded.rounds] == [(0, 0, 1, 0, 0)] * 9


def test_the_prefill_token_belongs_to_no_round(model, truth):
    decoded = run(model, Oracle(model, truth), PROMPT, 1)
    assert decoded.tokens == (truth[0],) and decoded.rounds == () and decoded.end_s == decoded.ttft_s


@pytest.mark.parametrize("lengths", [(15,), (3, 0, 6, 1), (2,)])
@pytest.mark.parametrize("wanted", [1, 2, 7, 23])
def test_emitted_tokens_of_all_rounds_and_the_prefill_token_are_the_output(model, truth, lengths, wanted):
    decoded = run(model, Oracle(model, truth, lengths), PROMPT, wanted)
    assert sum(r.emitted for r in decoded.rounds) + 1 == len(decoded.tokens) == wanted
    assert list(decoded.tokens) == truth[:wanted] and decoded.finish_reason == "length"
    assert all(1 <= r.emitted <= r.accepted + 1 for r in decoded.rounds)


def test_tokens_behind_an_end_token_are_accepted_but_not_emitted(model, truth):
    decoded = run(model, Oracle(model, truth, LONG), PROMPT, 40, ends=[truth[5]])
    assert list(decoded.tokens) == truth[:6] and [(r.accepted, r.emitted) for r in decoded.rounds] == [(15, 5)]


def test_tokens_behind_the_limit_are_accepted_but_not_emitted(model, truth):
    decoded = run(model, Oracle(model, truth, LONG), PROMPT, 20)
    assert list(decoded.tokens) == truth[:20] and [(r.accepted, r.emitted) for r in decoded.rounds] == [(15, 16), (15, 3)]
    answer = Answer(Request(tuple(PROMPT), (9,), Sampling(max_new_tokens=4)), room=100)
    answer.first(1, 0.1)
    answer.add([2, 3, 4, 5, 9], proposed=6, depth=6, width=1, at_s=0.2)
    answer.add([6, 7], proposed=6, depth=6, width=1, at_s=0.3)  # the batch goes on without it
    assert (answer.tokens, answer.finish_reason) == ([1, 2, 3, 4], "length")
    assert [(r.accepted, r.emitted) for r in answer.rounds] == [(4, 3)]


def test_tokens_behind_the_context_are_neither_accepted_nor_emitted():
    answer = Answer(Request(tuple(PROMPT), (9,), Sampling(max_new_tokens=40)), room=4)
    answer.first(1, 0.1)
    answer.add([2, 3, 4, 5, 9], proposed=6, depth=6, width=1, at_s=0.2)
    assert (answer.tokens, answer.finish_reason) == ([1, 2, 3, 4], "context")
    assert [(r.accepted, r.emitted) for r in answer.rounds] == [(2, 3)]


# 2. End tokens


@pytest.mark.parametrize("place", [1, 2, 8, 15, 16])
def test_an_end_token_inside_an_accepted_block_ends_the_output_there(model, truth, place):
    """Places 1 to 15 are drafted in the first round, 16 is its bonus token."""
    decoded = run(model, Oracle(model, truth, LONG), PROMPT, 40, ends=[truth[place]])
    assert list(decoded.tokens) == truth[: place + 1] and decoded.finish_reason == "stop"
    assert [(r.accepted, r.emitted) for r in decoded.rounds] == [(15, place)]


def test_an_end_token_as_the_very_first_token(model, truth, arms):
    for proposer in [*arms.values(), Oracle(model, truth)]:
        decoded = run(model, proposer, PROMPT, 40, ends=[truth[0]])
        assert (decoded.tokens, decoded.rounds, decoded.finish_reason) == ((truth[0],), (), "stop")


def test_of_several_end_tokens_the_first_that_comes_counts(model, truth):
    decoded = run(model, Oracle(model, truth, LONG), PROMPT, 40, ends=[truth[12], truth[4], truth[9]])
    assert list(decoded.tokens) == truth[:5]


def test_an_end_token_at_the_limit_is_a_stop(model, truth):
    assert run(model, Oracle(model, truth, LONG), PROMPT, 6, ends=[truth[5]]).finish_reason == "stop"


def test_an_end_token_in_the_prompt_or_in_a_rejected_branch_ends_nothing(model, truth):
    oracle = Oracle(model, truth)
    run(model, oracle, PROMPT, 40)
    rejected = {int(token) for tree in oracle.trees for token in tree.tokens[0]} - set(truth)
    assert len(rejected) > 10
    decoded = run(model, Oracle(model, truth), PROMPT, 40, ends=[*rejected, *set(PROMPT) - set(truth)])
    assert list(decoded.tokens) == truth[:40] and decoded.finish_reason == "length"


# 3. The mask token


def test_an_output_token_with_the_mask_tokens_id_is_kept(model, truth, tmp_path):
    mask = truth[3]
    for proposer in proposers(model, tmp_path, mask_token_id=mask).values():
        assert list(run(model, proposer, PROMPT, 12).tokens) == truth[:12]


# 5. What a drafter's cache holds


def without_drafts(watched: Watched, fresh: Proposer) -> Proposer:
    """``fresh``, told as one prompt all that ``watched`` was told, without ever having drafted."""
    fresh.reset(watched.batch, watched.capacity)
    tokens, features = (torch.cat([told[i][:, : told[3]] for told in watched.commits], dim=1) for i in (0, 1))
    fresh.commit(tokens, features, torch.tensor([0]), watched.committed)
    return fresh


@pytest.mark.parametrize("name", ["dflash", "ddtree", "mtp"])
@torch.inference_mode()
def test_a_drafters_cache_holds_nothing_of_its_drafts(model, arms, tmp_path, name):
    """After ten rounds it drafts what a drafter drafts that was told the same tokens and never drafted."""
    watched = Watched(arms[name])
    run(model, watched, PROMPT, 30)
    assert len(watched.trees) >= 8
    fresh = without_drafts(watched, proposers(model, tmp_path / "again")[name])
    bonus = torch.tensor([11])
    used, unused = (proposer.propose(bonus, watched.committed) for proposer in (watched.inner, fresh))
    assert torch.equal(used.tokens, unused.tokens) and torch.equal(used.parents, unused.parents)
    torch.testing.assert_close(used.logprobs, unused.logprobs, rtol=1e-4, atol=1e-4)


def test_every_position_but_the_bonus_tokens_is_committed_once(model, arms, truth):
    """The bonus token is in no cache yet: the last round began behind prompt + output before it - 1 rows."""
    for name in ("dflash", "ddtree", "mtp"):
        proposer = Watched(arms[name])
        decoded = run(model, proposer, PROMPT, 20)
        before = [0, *(len(PROMPT) + n for n in accumulate((r.accepted + 1 for r in decoded.rounds[:-1]), initial=0))]
        assert [int(lengths) for _, _, lengths, _ in proposer.commits] == before
        assert sum(int(kept) for *_, kept in proposer.commits) == int(proposer.committed) >= len(PROMPT) + 19


@torch.inference_mode()
def test_a_dflash_cache_is_made_of_the_layers_that_its_config_lists(model, tmp_path):
    """Row p: keys and values of the target's features at p, as one pass over the final text gives them."""
    layers = (0, 1)
    proposer = proposers(model, tmp_path, target_layer_ids=layers)["dflash"]
    decoded = run(model, proposer, PROMPT, 20)
    text = torch.tensor([PROMPT + list(decoded.tokens)[:-1]])
    positions = torch.arange(text.shape[1])[None]
    wanted = proposer.drafter.context(model(text, positions, taps=layers)[1], positions)
    for found, layer in zip(proposer._cache, wanted, strict=True):
        torch.testing.assert_close(found[:, :, :, : text.shape[1]], torch.stack(layer), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_an_mtp_heads_entries_are_made_of_the_targets_hidden_states(model, arms, truth, tmp_path):
    """Entry p: the target's hidden state at p and the token at p + 1, as one pass over the final text fills them."""
    watched = Watched(arms["mtp"])
    decoded = run(model, watched, PROMPT, 20)
    text = PROMPT + list(decoded.tokens)
    _, features = model(torch.tensor([text]), torch.arange(len(text))[None], taps=(model.config.num_layers - 1,))
    once = proposers(model, tmp_path / "again")["mtp"]
    once.reset(1, len(text))
    once.commit(torch.tensor([text]), features, torch.tensor([0]), torch.tensor([len(text)]))
    entries = int(watched.inner._entries)  # behind them wait for their next token: what no later draft asked for
    assert entries + int(watched.inner._counts) == int(watched.committed) and entries > len(PROMPT) + 10
    torch.testing.assert_close(watched.inner._keys[:, :, :entries], once._keys[:, :, :entries], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(watched.inner._values[:, :, :entries], once._values[:, :, :entries], rtol=1e-4, atol=1e-4)


def test_committed_features_are_those_of_the_accepted_tokens(model, truth):
    """Rows of losing branches must not reach the drafter, whatever the order of rows in the tree."""
    oracle = Oracle(model, truth, (4, 2, 0, 7), taps=(2, 0))
    decoded = run(model, oracle, PROMPT, 40)
    text = PROMPT + list(decoded.tokens)[:-1]
    assert oracle.tokens == text[: len(oracle.tokens)] and len(oracle.tokens) >= len(text)
    _, features = model(torch.tensor([oracle.tokens]), torch.arange(len(oracle.tokens))[None], taps=(2, 0))
    torch.testing.assert_close(torch.cat(oracle.features), features[0], rtol=1e-4, atol=1e-4)


def test_a_new_request_knows_nothing_of_the_last(model, arms):
    other = [40, 41, 42, 43, 44, 45, 46, 1, 2]
    for proposer in arms.values():
        first = run(model, proposer, PROMPT, 20)
        run(model, proposer, other, 20)
        again = run(model, proposer, PROMPT, 20)
        assert again.tokens == first.tokens
        assert [(r.proposed, r.accepted) for r in again.rounds] == [(r.proposed, r.accepted) for r in first.rounds]


# 6. Positions


def test_siblings_have_one_position(model, truth):
    """A row's position is that of its depth behind the committed text, not its place among the rows."""
    seen = []
    handle = model.register_forward_pre_hook(lambda module, args: seen.append((args[1][0].tolist(), int(args[2].lengths))))
    try:
        oracle = Oracle(model, truth, (3,))
        run(model, oracle, PROMPT, 20)
    finally:
        handle.remove()
    (prefill, start), *rounds = seen
    assert prefill == list(range(len(PROMPT))) and start == 0
    for (positions, committed), tree in zip(rounds, oracle.trees, strict=True):
        assert positions == [committed + depth for depth in tree.depths[0].tolist()]
    assert len(set(rounds[0][0])) < len(rounds[0][0]), "there were siblings"


# 12. Less room than a block


@pytest.mark.parametrize("wanted", [1, 2, 3, 4])
def test_fewer_tokens_wanted_than_a_block_has(model, arms, truth, wanted):
    for proposer in [*arms.values(), Oracle(model, truth, LONG)]:
        decoded = run(model, proposer, PROMPT, wanted)
        assert list(decoded.tokens) == truth[:wanted] and decoded.finish_reason == "length"
        assert 1 + sum(r.emitted for r in decoded.rounds) == wanted
        assert all(r.emitted <= r.accepted + 1 for r in decoded.rounds) and all(r.emitted == r.accepted + 1 for r in decoded.rounds[:-1])


@pytest.mark.parametrize("room", [1, 2, 3, 9])
def test_the_context_limit_ends_an_output(tmp_path, room):
    """The last token takes the context's last position. Drafts may reach beyond; what they say there is not listened to."""
    model = tiny_target(tiny_config(context_length=32), seed=1)
    prompt = [(7 * i) % 48 for i in range(32 - room)]
    answer = greedy(model, prompt, room)
    for proposer in [*proposers(model, tmp_path).values(), Oracle(model, answer, LONG)]:
        decoded = run(model, proposer, prompt, 100)
        assert list(decoded.tokens) == answer and decoded.finish_reason == "context"
    exact = run(model, Oracle(model, answer), prompt, room)
    assert exact.finish_reason == "length", "what was asked for was delivered"


def test_a_prompt_of_one_token(model, arms):
    answer = greedy(model, [3], 12)
    for proposer in [*arms.values(), Oracle(model, answer)]:
        assert list(run(model, proposer, [3], 12).tokens) == answer


def test_rounds_are_timed_in_order(model, arms):
    decoded = run(model, arms["ddtree"], PROMPT, 12)
    times = [decoded.ttft_s, *(r.at_s for r in decoded.rounds)]
    assert times == sorted(times) and decoded.end_s == times[-1]
    for r in decoded.rounds:
        assert min(r.draft_s, r.build_s, r.verify_s, r.commit_s) >= 0


class Slow(Proposer):
    """Takes its time to read the prompt and to draft."""

    def commit(self, tokens, features, lengths, kept):
        time.sleep(0.05 * (tokens.shape[1] > 1))

    def propose(self, bonus, lengths):
        time.sleep(0.2)
        return DraftTree.root(bonus)


def test_a_drafters_prefill_is_in_the_first_tokens_time_and_its_first_draft_in_the_decode_time(model):
    decoded = run(model, Slow(), PROMPT, 2)
    assert decoded.ttft_s >= 0.05 and decoded.rounds[0].draft_s >= 0.2
    assert decoded.end_s - decoded.ttft_s >= 0.2


def test_greedy_takes_the_first_of_equal_logits_in_every_strategy(tmp_path):
    """A head whose rows repeat gives exact ties at every position."""
    model = tiny_target(seed=1)
    with torch.no_grad():
        model.head.weight[24:] = model.head.weight[:24]
    assert (causal_logits(model, PROMPT)[-1].sort(descending=True).values[::2].diff() < 0).all()
    answer = greedy(model, PROMPT, 20)
    assert max(answer) < 24
    for proposer in [*proposers(model, tmp_path).values(), Oracle(model, answer)]:
        assert list(run(model, proposer, PROMPT, 20).tokens) == answer
