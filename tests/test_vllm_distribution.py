"""At temperature 1 vLLM with DDTree samples exactly the target's distribution: the torch engine's test, through vLLM."""

from collections import Counter

import pytest
from test_distribution import FALSE_ALARM, FILTERED, LENGTH, PROMPT, SAMPLES, VOCABULARY, exact, p_value
from tiny_decoding import loaded, run
from vllm_runs import ask_child, configuration, needs_vllm, request
from vllm_tiny import write_pair

import strategies.ddtree
from harness.engines.torch.engine import target_view

pytestmark = needs_vllm


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("tiny"), seed=12, vocab_size=VOCABULARY, context_length=64)


@pytest.fixture(scope="module")
def found(tiny, tmp_path_factory):
    plain = [request(PROMPT, max_new_tokens=LENGTH, temperature=1.0, seed=seed) for seed in range(SAMPLES)]
    unseeded = [request(PROMPT, max_new_tokens=LENGTH, temperature=1.0, params={"seed": None}) for _ in range(SAMPLES)]
    filtered = {key: value for key, value in FILTERED.items() if key != "temperature"}
    warm = {"max_new_tokens": LENGTH, "temperature": FILTERED["temperature"], "filters": filtered}
    narrow = [request(PROMPT, seed=seed, **warm) for seed in range(SAMPLES)]
    asked = {"plain": plain, "unseeded": unseeded, "narrow": narrow}
    runs = [{"name": name, "batch": 32, "requests": requests} for name, requests in asked.items()]
    strategy = configuration("ddtree", drafter=str(tiny / "drafter"), budget=6)
    return ask_child(tmp_path_factory.mktemp("asked"), tiny / "target", strategy, runs, settings={"max_model_len": 64, "max_num_seqs": 32})


def outcomes(run) -> Counter:
    return Counter(tuple(answer["tokens"]) for answer in run["answers"].values())


@pytest.mark.parametrize("name, filters", [("plain", {}), ("unseeded", {}), ("narrow", FILTERED)])
def test_samples_have_the_targets_distribution(tiny, found, name, filters):
    expected = exact(loaded(tiny / "target"), **filters)
    sampled = outcomes(found[name])
    assert sampled.total() == SAMPLES
    assert p_value(sampled, expected) > FALSE_ALARM
    assert not {outcome for outcome, chance in expected.items() if chance == 0} & sampled.keys()
    assert sum(r["accepted"] for answer in found[name]["answers"].values() for r in answer["rounds"]) > SAMPLES / 10


def test_samples_are_the_torch_engines_for_the_same_seed(tiny, found):
    model = loaded(tiny / "target")
    proposer = strategies.ddtree.build(target_view(model), "ddtree", str(tiny / "drafter"), 6)
    for seed in range(100):
        expected = run(model, proposer, PROMPT, LENGTH, temperature=1.0, seed=seed)
        answer = found["plain"]["answers"][str(seed)]
        assert tuple(answer["tokens"]) == expected.tokens
        assert [r["accepted"] for r in answer["rounds"]] == [r.accepted for r in expected.rounds]


def test_a_biased_walk_is_found_out(tiny, found):
    """The test has teeth: the same samples against the distribution at another temperature."""
    assert p_value(outcomes(found["plain"]), exact(loaded(tiny / "target"), temperature=1.15)) < FALSE_ALARM
