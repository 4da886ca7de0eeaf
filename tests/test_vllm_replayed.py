"""Steps of whole trees as replays inside vLLM: what the plugin says without them, round by round. Off a GPU a stand-in does the
recorded work again, on the places it was recorded with."""

import random

import pytest
from vllm_runs import ask_child, configuration, needs_vllm, request, told
from vllm_tiny import write_pair

pytestmark = needs_vllm
LONGEST, VOCABULARY = 96, 8


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=length)


def runs() -> list[dict]:
    lengths = [30, 9, 22, 5, 17, 28, 12, 26, 3]
    mixed = [request(prompt(number, 4 + number), max_new_tokens=length) for number, length in enumerate(lengths)]
    chunked = [request(prompt(20 + number, 44 + 2 * number), max_new_tokens=16 + 5 * (number % 3)) for number in range(7)]
    ending = [request(prompt(40 + number, 10 + 9 * number), max_new_tokens=200) for number in range(4)]
    kinds = [{}, {"temperature": 1.0, "seed": 3}, {}, {"params": {"logprobs": 2}}, {}, {}]
    special = [request(prompt(60 + number, 9), max_new_tokens=14 + 3 * number, **kind) for number, kind in enumerate(kinds)]
    aborted = [request(prompt(80 + number, 7), max_new_tokens=30, abort_after=6 if number % 2 else None) for number in range(6)]
    whole = {
        "alone": (1, mixed[:4]), "three": (3, mixed), "chunked": (3, chunked), "ending": (3, ending), "special": (3, special),
        "aborted": (3, aborted), "again": (1, mixed[:1]),
    }  # fmt: skip
    return [{"name": name, "batch": batch, "requests": requests} for name, (batch, requests) in whole.items()]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Of one engine that replays and one that does not."""
    tmp = tmp_path_factory.mktemp("replayed")
    write_pair(tmp / "pair", vocab_size=VOCABULARY)
    settings = dict(max_model_len=LONGEST, max_num_batched_tokens=64, kv_cache_gib=0.1, threads=1)

    asked = configuration("ddtree", drafter=str(tmp / "pair" / "drafter"), budget=7)
    return tuple(ask_child(tmp, tmp / "pair" / "target", asked, runs(), settings=settings, replayed=replayed) for replayed in (True, False))


@pytest.mark.parametrize("name", [run["name"] for run in runs()])
def test_replayed_rounds_are_those_without_replays(answers, name):
    ours, theirs = (found[name]["answers"] for found in answers)
    assert answers[0][name]["replays"] > 3 and answers[1][name]["replays"] == 0
    assert ours.keys() == theirs.keys()
    for number, expected in theirs.items():
        if expected.get("aborted"):
            assert ours[number] == expected
            continue
        assert told(ours[number]) == told(expected)
        shapes = [[(r["proposed"], r["depth"], r["width"]) for r in answer["rounds"]] for answer in (ours[number], expected)]
        assert shapes[0] == shapes[1]
    assert name == "aborted" or sum(r["accepted"] for answer in ours.values() for r in answer["rounds"]) > len(ours)


def test_nothing_is_left_behind(answers):
    for found in answers:
        assert found["left"][0] <= 1 and found["three"]["free_blocks"][0] == found["three"]["free_blocks"][1]
