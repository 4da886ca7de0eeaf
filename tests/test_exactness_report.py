"""The exactness benchmark: every strategy in every way, and a single wrong token shows."""

import json
import sys

import pytest
from fake_engine import FakeEngine

from benchmarks import exactness


@pytest.fixture
def called(monkeypatch, tmp_path, capsys):
    """Its exit status, last line and file with a made-up engine, whose ``differs`` gets its last token wrong."""

    def call(differs, *arguments):
        built = []

        def build(plan):
            built.append(plan.engine.captured_graphs)
            return FakeEngine(None, {}, differs=differs)

        def answers(plan, device, asked):
            return [list(FakeEngine(None, {}).decode("baseline", request).tokens) for request in asked]

        file = tmp_path / "found.json"
        monkeypatch.setattr(exactness, "build_engine", build)
        monkeypatch.setattr(exactness, "answers_of", answers)
        monkeypatch.setattr(sys, "argv", ["exactness", "--output", str(file), "suite=quick", "sampling.max_new_tokens=4", *arguments])
        status = exactness.main()
        out, err = capsys.readouterr()
        return status, json.loads(out.splitlines()[-1]) if out else err, json.loads(file.read_text()) if out else None, built

    return call


def test_each_strategy_is_compared_in_every_way(called):
    status, last, stored, built = called(None, "--prompts", "3", "--batches", "1,2", "engine.device=cpu")
    strategies = ["baseline", "mtp", "dflash", "ddtree_auto", "ddtree"]
    assert (status, built) == (0, [False])
    assert list(stored["totals"]) == [f"{name}, eager, batch {batch}" for batch in (1, 2) for name in strategies]
    assert {total["identical"] for total in stored["totals"].values()} == {3} and last["prompts"] == 3
    assert stored["float32_matmul_precision"] == "highest" and stored["max_new_tokens"] == 4
    assert stored["totals"]["ddtree, eager, batch 2"] == {"identical": 3, "rounds": 6, "accepted": 6, "acceptance_length": 2.0}


def test_one_wrong_token_is_found_with_its_place(called):
    status, last, stored, _ = called("ddtree", "--prompts", "2")
    assert status == 1 and last["totals"]["ddtree, eager, batch 1"]["identical"] == 0
    assert last["totals"]["mtp, eager, batch 1"]["identical"] == 2
    assert stored["prompts"][0]["strategies"]["ddtree, eager, batch 1"]["first_difference"] == 3


def test_a_number_of_prompts_that_cannot_be(called):
    assert called(None, "--prompts", "0")[:2] == (2, "exactness: --prompts 0: ask for at least 1\n")
    assert "suite.limit=99: quick has 32 rows" in called(None, "--prompts", "99")[1]


def test_on_a_gpu_rounds_are_captured_and_eager(called, monkeypatch):
    monkeypatch.setattr(exactness, "pick_device", lambda name: exactness.torch.device("cuda"))
    _, _, stored, built = called(None, "--prompts", "2", "--batches", "8")
    assert built == [True, False] and len(stored["totals"]) == 10
    assert "baseline, captured, batch 8" in stored["totals"] and "baseline, eager, batch 8" in stored["totals"]
    assert called(None, "--prompts", "2", "engine.captured_graphs=true")[3] == [True]
