"""Several requests at once, each with its own tree, length and end: what each gets alone, it gets in any company."""

import random
from dataclasses import replace

import pytest
from tiny_decoding import Oracle, greedy, proposers, tiny_config, tiny_target, told

from harness.engines.torch.decode import decode
from harness.records import Request, Sampling
from kernels import device

pytestmark = pytest.mark.timeout(120)
STRATEGIES = ["baseline", "mtp", "dflash", "ddtree"]


@pytest.fixture(scope="module")
def model():
    return tiny_target(tiny_config("qwen3", vocab_size=64), seed=3)


@pytest.fixture(scope="module")
def arms(model, tmp_path_factory):
    return proposers(model, tmp_path_factory.mktemp("drafters"), layer_types=("sliding_attention", "full_attention"), sliding_window=6)


def requests(count: int, **sampling) -> list[Request]:
    """Prompts of 1 to 30 tokens, answers of 1 to 24, and for every third an end token that may come early."""
    source = random.Random(count)
    found = []
    for number in range(count):
        prompt = tuple(source.randrange(64) for _ in range(source.randint(1, 30)))
        ends = tuple(source.sample(range(64), 6)) if number % 3 == 2 else ()
        found.append(Request(prompt, ends, Sampling(max_new_tokens=source.randint(1, 24), seed=number, **sampling)))
    return found


@pytest.mark.parametrize("batch", [2, 5, 8])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_request_gets_in_a_batch_what_it_gets_alone(model, arms, strategy, batch):
    asked = requests(batch)
    alone = [told(decode(model, arms[strategy], [request])[0]) for request in asked]
    assert [told(decoded) for decoded in decode(model, arms[strategy], asked)] == alone
    assert [list(tokens) for tokens, reason, _ in alone if reason == "length"] == [
        greedy(model, request.prompt_ids, request.sampling.max_new_tokens)
        for request, (_, reason, _) in zip(asked, alone, strict=True)
        if reason == "length"
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_samples_are_those_of_each_requests_own_seed(model, arms, strategy):
    asked = requests(5, temperature=1.0, top_k=20)
    alone = [told(decode(model, arms[strategy], [request])[0]) for request in asked]
    assert [told(decoded) for decoded in decode(model, arms[strategy], asked)] == alone
    other = [replace(request, sampling=replace(request.sampling, seed=request.sampling.seed + 100)) for request in asked]
    assert [told(decoded) for decoded in decode(model, arms[strategy], other)] != alone


def test_one_that_is_done_stands_still_while_another_goes_on(model, arms):
    """The short one's positions would run out of the cache long before the long one ends."""
    short, long = Request((5,), (), Sampling(max_new_tokens=1)), Request((7, 8), (), Sampling(max_new_tokens=200))
    for strategy in STRATEGIES:
        first, second = decode(model, arms[strategy], [short, long])
        assert len(first.tokens) == 1 and first.end_s < second.end_s and len(second.tokens) == 200
        assert list(second.tokens) == greedy(model, [7, 8], 200)


def test_reports_that_come_a_round_late_change_nothing(model, monkeypatch):
    """As on a GPU: the round that was under way when a request got its last token is not heard of."""
    asked = Request((3, 4, 5), (), Sampling(max_new_tokens=21))
    truth = greedy(model, asked.prompt_ids, 60)
    for ends in ((), (truth[9],)):
        request = replace(asked, end_tokens=ends)
        (at_once,) = decode(model, Oracle(model, truth, (3,)), [request])
        monkeypatch.setattr("harness.engines.torch.handover.on_gpu", lambda report: True)
        (late,) = decode(model, Oracle(model, truth, (3,)), [request])
        monkeypatch.undo()
        assert told(late) == told(at_once)
    assert not device.interpreted
