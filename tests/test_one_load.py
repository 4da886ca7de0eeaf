"""Several runs with one engine: whose keys are whose, and what differs too much."""

import json
from pathlib import Path

import pytest

from benchmarks import one_load
from harness.store import Store

FAKE = ["engine._target_=fake_engine.FakeEngine", "+engine.crowding=0.25", "model=local", "model.path=x", "suite.max_turns=1",
        "suite.limit=16", "sampling.max_new_tokens=9"]  # fmt: skip


@pytest.fixture
def built(monkeypatch):
    engines = []
    build = one_load.build_engine
    monkeypatch.setattr(one_load, "build_engine", lambda plan: engines.append(build(plan)) or engines[-1])
    return engines


def test_each_run_has_its_keys_and_a_folder_and_the_engine_is_loaded_once(built, tmp_path, capsys):
    runs = ["--", "measure.batch=1", "--", "measure.batch=4", "--", "measure.batch=8", "sampling.max_new_tokens=9"]
    assert one_load.main([*FAKE, f"measure.root={tmp_path}/runs", *runs]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out.splitlines()[-1])
    assert len(built) == 1 and [run["status"] for run in told["runs"]] == [0, 0, 0]
    sizes = [{cell.batch_size for cell in Store(Path(run["run"])).cells()} for run in told["runs"]]
    assert sizes == [{None}, {4}, {8}]
    (found,) = told["crossings"]
    assert (found["strategy"], found["batches"]) == ("ddtree", [1, 4, 8])
    assert found["speedups"] == pytest.approx([2, 8 / 7, 8 / 11]) and found["crosses_1_at"] == [pytest.approx(4.9, abs=0.02)]
    assert "crosses 1 at a batch of 4.9" in err


def test_a_strategy_brings_the_arms_that_it_is_measured_beside(built, tmp_path, capsys):
    assert one_load.main([*FAKE, f"measure.root={tmp_path}", "strategy.budget=auto", "--", "suite.limit=1"]) == 0
    (run,) = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert {cell.key.strategy for cell in Store(Path(run["run"])).cells()} == {"baseline", "ddtree", "ddtree_fixed"}
    assert {strategy for strategy, _ in built[0].seen} == {"baseline", "ddtree", "ddtree_fixed"}


@pytest.mark.parametrize("runs, words", [
    ([], "no run is asked for"),
    (["--", "measure.batch=1", "--", "strategy.budget=3"], "strategy.budget=3: another strategy than the first run's"),
    (["--", "model.dtype=float32", "--", "model.dtype=bfloat16"], "another model than the first run's"),
    (["--", "measure.batch=0"], "measure.batch=0: must be 1"),
])  # fmt: skip
def test_what_one_engine_cannot_do_is_said_before_it_is_loaded(built, tmp_path, capsys, runs, words):
    assert one_load.main([*FAKE, f"measure.root={tmp_path}", *runs]) == 2
    assert words in capsys.readouterr().err and not built and not list(tmp_path.iterdir())
