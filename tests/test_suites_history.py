"""Whose answers a second turn comes after, what the result says about it, and the hash over all prompts."""

import json
import sys
from pathlib import Path

import pytest
from fake_engine import FakeEngine, measure

from harness.__main__ import main
from harness.measuring import Schedule
from harness.records import Sampling
from harness.suites import Row
from harness.summary import prompts_sha256

STRATEGIES = ("baseline", "mtp", "ddtree")
ROWS = [Row(id=f"t/{i}", category="chat", turns=("hello", "and then?", "why?")) for i in range(4)]


def cells_and_requests(history_of=None, seed=0, **options):
    fake = FakeEngine(None, {name: {} for name in STRATEGIES}, **options)
    sampling = Sampling(max_new_tokens=4)
    return measure(fake, Schedule(ROWS, STRATEGIES, sampling, 1, seed, history_of)), fake.seen


def prompts_of(cells, name) -> str:
    return prompts_sha256(cell for cell in cells if cell.key.strategy == name)


def test_with_the_baselines_history_every_strategy_is_asked_the_same():
    cells, seen = cells_and_requests("baseline", differs="mtp")
    answers = {(c.key.prompt, c.key.turn): c.text for c in cells if c.key.strategy == "baseline"}
    assert any(c.text != answers[c.key.prompt, c.key.turn] for c in cells if c.key.strategy == "mtp")
    for cell, (_, request) in zip(cells, seen, strict=True):
        said = []
        for turn, question in enumerate(ROWS[0].turns[: cell.key.turn + 1]):
            said += [answers[cell.key.prompt, turn - 1], question] if turn else [question]
        assert request.prompt_ids == tuple(1 + byte for byte in "".join(said).encode())
    assert prompts_of(cells, "mtp") == prompts_of(cells, "baseline") == prompts_sha256(cells)


def test_with_their_own_histories_differing_answers_make_differing_prompts():
    cells, _ = cells_and_requests(differs="mtp")
    assert prompts_of(cells, "ddtree") == prompts_of(cells, "baseline") != prompts_of(cells, "mtp")


def test_the_order_stays_shuffled_and_each_turn_waits_for_the_one_before():
    cells, _ = cells_and_requests("baseline")
    assert [c.key for c in cells] == [c.key for c in cells_and_requests()[0]]
    first = [c.key.strategy for c in cells if c.key.turn == 0]
    assert {first[i] for i in range(0, len(first), len(STRATEGIES))} != {"baseline"}
    assert [c.key.turn for c in cells] == [turn for _ in ROWS for turn in (0, 0, 0, 1, 1, 1, 2, 2, 2)]


def test_a_failing_strategy_does_not_end_the_others_and_is_asked_again():
    cells, _ = cells_and_requests("baseline", broken="mtp")
    assert {c.failure.kind for c in cells if c.key.strategy == "mtp"} == {"RuntimeError"}
    assert all(c.decoded for c in cells if c.key.strategy != "mtp")


def test_a_failing_baseline_leaves_no_history():
    cells, _ = cells_and_requests("baseline", broken="baseline")
    assert all(c.decoded for c in cells if c.key.turn == 0 and c.key.strategy != "baseline")
    assert {c.failure.kind for c in cells if c.key.turn > 0} == {"TurnBefore"}


def test_the_hash_is_over_prompts_and_not_over_order_times_or_repetitions():
    one, two = cells_and_requests(seed=0)[0], cells_and_requests(seed=5)[0]
    assert [c.key for c in one] != [c.key for c in two] and prompts_sha256(one) == prompts_sha256(two)
    assert prompts_sha256(one[:-3]) != prompts_sha256(one)


@pytest.fixture
def harness(tmp_path, monkeypatch, capsys):
    """``harness(*arguments)`` gives exit status, the run's folder (if any) and stderr, with the fake engine."""
    monkeypatch.chdir(tmp_path)
    fake = ["engine._target_=fake_engine.FakeEngine", "model=local", "model.path=x", "sampling.max_new_tokens=4"]

    def call(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["harness", *fake, *arguments])
        status = main()
        captured = capsys.readouterr()
        return status, Path(json.loads(captured.out.splitlines()[-1])["run"]) if captured.out else None, captured.err

    return call


@pytest.mark.parametrize("history", ["own", "baseline"])
def test_the_result_says_which_history_and_which_prompts(harness, history):
    status, folder, _ = harness("suite.limit=8", "+engine.differs=ddtree", f"suite.history={history}")
    assert status == 0
    suite = json.loads((folder / "environment.json").read_text())["suite"]
    summary = json.loads((folder / "summary.json").read_text())
    assert suite["history"] == summary["history"] == history and f"history: {history}" in (folder / "config.yaml").read_text()
    arms = [figures["prompts_sha256"] for figures in summary["strategies"].values()]
    assert len(summary["prompts_sha256"]) == 64 and len(set(arms)) == (1 if history == "baseline" else 2)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["suite.history=mine"], "suite.history=mine"),
        (["suite.history=baseline", "measure.baseline=null"], "suite.history=baseline"),
    ],
)
def test_impossible_histories_are_refused_in_one_line(harness, arguments, words):
    status, _, err = harness(*arguments)
    assert status == 2 and words in err and len(err.splitlines()) == 1
