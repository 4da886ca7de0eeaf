"""SmolLM2 in fp32 through vLLM: the torch engine's tokens, and in the same rounds."""

import pytest
from vllm_runs import TorchAnswers, ask_child, configuration, needs_vllm, told, told_by_torch

from strategies.base import DraftTree, Proposer

pytestmark = needs_vllm
LENGTH = 24
MIXED = [8, 24, 17, 22, 20, 12, 24, 21]  # answers of a batch end at different times


@pytest.fixture(scope="module")
def torch_says():
    return TorchAnswers()


@pytest.fixture(scope="module")
def tmp(tmp_path_factory):
    return tmp_path_factory.mktemp("vllm")


def all_prompts(torch_says, batch=1):
    return {"name": "all", "batch": batch, "requests": [torch_says.request(i, LENGTH) for i in range(24)]}


@pytest.fixture(scope="module")
def ddtree(torch_says, tmp):
    """One engine, every run that needs no other settings."""
    mixed = [torch_says.request(i, MIXED[i % 8]) for i in range(24)]
    aborted = [torch_says.request(i, LENGTH, abort_after=6 if i % 3 == 1 else None) for i in range(24)]
    sampled = [torch_says.request(i, 24, temperature=1.0, seed=i) for i in range(8)]
    eight = [torch_says.request(i, LENGTH) for i in range(8)]
    runs = [
        all_prompts(torch_says),
        {"name": "mixed", "batch": 8, "requests": mixed},
        {"name": "aborted", "batch": 8, "requests": aborted},
        {"name": "sampled", "batch": 8, "requests": sampled},
        {"name": "special", "batch": 8, "requests": special_requests(torch_says)},
        *({"name": part, "batch": 4, "control": part, "requests": eight} for part in ("commit", "positions", "mask")),
        {"name": "afterwards", "batch": 8, "requests": eight},
    ]
    return ask_child(tmp, torch_says.folder, configuration("ddtree"), runs)


def special_requests(torch_says):
    """Requests that only a chain serves, between some that get trees."""
    asked = [{}, {"logprobs": 2}, {}, {"repetition_penalty": 1.3}, {"presence_penalty": 0.7}, {}, {"frequency_penalty": 0.5}, {}]
    return [torch_says.request(i, 24, params=params) for i, params in enumerate(asked)]


@pytest.fixture(scope="module")
def baseline(torch_says, tmp):
    runs = [all_prompts(torch_says, batch=8), {"name": "special", "batch": 8, "requests": special_requests(torch_says)}]
    return ask_child(tmp, torch_says.folder, configuration("baseline"), runs)


def assert_equal(torch_says, strategy, found, lengths):
    differing = [
        number for number, length in lengths.items()
        if told(found[str(number)]) != told_by_torch(torch_says.decode(strategy, number, length))
    ]  # fmt: skip
    assert not differing


def test_baseline_gives_the_same_tokens(torch_says, baseline):
    assert_equal(torch_says, "baseline", baseline["all"]["answers"], dict.fromkeys(range(24), LENGTH))


def test_vllms_own_dflash_takes_the_shipped_drafter_and_the_same_rounds(torch_says, tmp):
    mixed = {"name": "mixed", "batch": 8, "requests": [torch_says.request(i, MIXED[i % 8]) for i in range(8)]}
    found = ask_child(tmp, torch_says.folder, configuration("dflash"), [all_prompts(torch_says), mixed])
    assert found["settings"]["speculative"] == {"method": "dflash", "num_speculative_tokens": 7}
    assert found["arguments"]["speculative_config"]["model"].endswith("strategies/dflash/drafters/smollm2-135m")
    assert_equal(torch_says, "dflash", found["all"]["answers"], dict.fromkeys(range(24), LENGTH))
    assert_equal(torch_says, "dflash", found["mixed"]["answers"], {i: MIXED[i] for i in range(8)})


def test_ddtree_takes_the_same_rounds_with_the_same_trees(torch_says, ddtree):
    assert_equal(torch_says, "ddtree", ddtree["all"]["answers"], dict.fromkeys(range(24), LENGTH))
    for number in range(24):
        rounds = [(r["proposed"], r["depth"], r["width"]) for r in ddtree["all"]["answers"][str(number)]["rounds"]]
        assert rounds == [(r.proposed, r.depth, r.width) for r in torch_says.decode("ddtree", number, LENGTH).rounds]


def test_batch_of_eight_with_mixed_lengths(torch_says, ddtree):
    assert_equal(torch_says, "ddtree", ddtree["mixed"]["answers"], {i: MIXED[i % 8] for i in range(24)})


def test_requests_aborted_midway_disturb_no_other_and_leave_nothing_behind(torch_says, ddtree):
    found = ddtree["aborted"]["answers"]
    aborted = {name for name, answer in found.items() if answer.get("aborted")}
    assert len(aborted) == 8
    assert_equal(torch_says, "ddtree", found, {i: LENGTH for i in range(24) if str(i) not in aborted})
    for name in aborted:
        tokens = torch_says.decode("ddtree", int(name), LENGTH).tokens
        assert tuple(found[name]["tokens"]) == tokens[: len(found[name]["tokens"])]
    before, after = ddtree["aborted"]["free_blocks"]
    assert before == after
    assert ddtree["left"][0] == 0 or sum(ddtree["left"]) <= 4 * 8, "no state of finished requests is kept"


def test_samples_are_the_torch_engines_for_the_same_seed(torch_says, ddtree):
    for number in range(8):
        expected = torch_says.decode("ddtree", number, 24, temperature=1.0, seed=number)
        assert told(ddtree["sampled"]["answers"][str(number)]) == told_by_torch(expected)


@pytest.mark.parametrize("part", ["commit", "positions", "mask"])
def test_without_a_part_of_it_outputs_differ(torch_says, ddtree, part):
    found = ddtree[part]["answers"]
    same = [tuple(found[str(i)]["tokens"]) == torch_says.decode("ddtree", i, LENGTH).tokens for i in range(8)]
    assert not all(same)


def test_controls_leave_nothing_behind(torch_says, ddtree):
    assert_equal(torch_says, "ddtree", ddtree["afterwards"]["answers"], dict.fromkeys(range(8), LENGTH))


def test_requests_that_need_a_chain_get_one_and_are_counted(ddtree, baseline):
    assert ddtree["chained"] == 4
    for number in range(8):
        tree, plain = (found["special"]["answers"][str(number)] for found in (ddtree, baseline))
        assert tree["tokens"] == plain["tokens"]
    chained = ddtree["special"]["answers"]["1"]["rounds"]
    assert {r["width"] for r in chained} <= {0, 1} and sum(r["accepted"] for r in chained) > 0


class WithoutDrafts(Proposer):
    """A proposer that proposes nothing in some rounds: what a request that was preempted and computed again goes through."""

    def __init__(self, inner, silent):
        self.inner, self.silent, self.taps = inner, silent, inner.taps
        self.max_rows, self.longest = inner.max_rows, inner.longest

    def reset(self, batch, capacity):
        self.round = -1
        self.inner.reset(batch, capacity)

    def commit(self, *told):
        self.inner.commit(*told)

    def propose(self, bonus, lengths):
        self.round += 1
        return DraftTree.root(bonus) if self.round in self.silent else self.inner.propose(bonus, lengths)


def test_chunked_prefill_and_preemption(torch_says, tmp):
    """Twelve requests in a cache for about three, prompts in chunks. A request that lost its place has its tokens computed
    again, and the step that ends this gives one token without a draft: a round that proposes nothing, there and only there."""
    length = 40
    run = {"name": "tight", "batch": 8, "requests": [torch_says.request(i, length) for i in range(12)]}
    tight = dict(block_size=32, num_gpu_blocks_override=24)
    settings = dict(max_model_len=512, max_num_batched_tokens=200)
    found = ask_child(tmp, torch_says.folder, configuration("ddtree"), [run], settings=settings, **tight)
    preempted = set(found["tight"]["preempted"])
    assert found["settings"]["cache_blocks"] == 24 and len(preempted) >= 2
    proposer = torch_says.engine._proposers["ddtree"]
    for number in range(12):
        answer, expected = found["tight"]["answers"][str(number)], torch_says.decode("ddtree", number, length)
        if str(number) in preempted:
            silent = {index for index, r in enumerate(answer["rounds"]) if r["proposed"] == 0}
            torch_says.engine._proposers["ddtree"] = WithoutDrafts(proposer, silent)
            again = torch_says._decode("ddtree", number, length)
            torch_says.engine._proposers["ddtree"] = proposer
            assert again.tokens == expected.tokens
            expected = again
        assert told(answer) == told_by_torch(expected)
    before, after = found["tight"]["free_blocks"]
    assert before == after
