"""A handful of what ``python -m benchmarks.fuzz`` tries by the hundred, and that it would notice."""

import json
from pathlib import Path

import pytest
from test_command import FAKE, harness, last_line  # noqa: F401  (a fixture)

from benchmarks.fuzz.calls import Answer, call, wrong_form
from benchmarks.fuzz.configurations import configurations
from benchmarks.fuzz.damages import damages
from benchmarks.fuzz.folders import Folders
from benchmarks.fuzz.runs import wrong_numbers
from harness.store import Store

SOME = ("nothing", "last line half written", "config.yaml unreadable")


@pytest.mark.parametrize("overrides", list(configurations(seed=7, count=8)), ids=lambda overrides: " ".join(overrides[4:]) or "tiny")
def test_a_configuration_is_refused_in_one_line_or_runs_with_right_numbers(harness, tmp_path, overrides):  # noqa: F811
    answer = Answer(*harness(*FAKE, *overrides))
    assert wrong_form(answer) is None, answer.err
    if answer.refused:
        assert list(tmp_path.iterdir()) == []
    else:
        assert wrong_numbers(answer, tmp_path) == []


def test_configurations_are_a_function_of_the_seed_and_touch_every_kind():
    drawn = list(configurations(3, 100))
    assert drawn == list(configurations(3, 100)) != list(configurations(4, 100)) and len(drawn) == 100
    keys = {override.lstrip("+~").partition("=")[0] for overrides in drawn for override in overrides}
    assert {"strategy", "engine.threads", "suite.limit", "sampling.temperature", "measure.baseline"} <= keys


def test_damaged_folders_in_processes_of_their_own(tmp_path):
    folders = Folders(tmp_path)
    chosen = [damage for damage in damages(0) if damage.name in SOME]
    assert len(chosen) == len(SOME)
    ended = {}
    for damage in chosen:
        for record in folders.tried(damage, ("gate",)):
            assert record["problems"] == [], record
            ended[damage.name] = record["answer"].status
    assert ended == {"nothing": 0, "last line half written": 2, "config.yaml unreadable": 2}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(2, "", "harness: suite.limit=0: must be 1 or more\n"), None),
        (Answer(0, "a table\n", "3 cells into FOLDER\n"), None),
        (Answer(2, "", "3 cells into FOLDER\n1/3 cells, 1 s left\nharness: table.md: cannot be written\n"), None),
        (Answer(1, "", 'Traceback (most recent call last):\n  File "x"\nKeyError: 1\n'), "traceback"),
        (Answer(2, "", "usage: harness\nharness: error\n"), "refused in 2 lines"),
        (Answer(2, "", ""), "refused in 0 lines"),
        (Answer(2, "", "something\n"), "who speaks"),
        (Answer(-11, "", ""), "signal 11"),
        (Answer(None, "", ""), "did not end"),
    ],
)
def test_what_is_no_answer_for_a_user_is_noticed(answer, words):
    found = wrong_form(answer)
    assert (found is None) if words is None else words in found


def test_wrong_numbers_are_noticed(harness, tmp_path):  # noqa: F811
    status, out, err = harness(*FAKE, "suite.limit=2", "sampling.max_new_tokens=4")
    assert wrong_numbers(Answer(status, out, err), tmp_path) == []
    last = last_line(out)
    for change, words in (({"acceptance_length": 9.0}, "counted"), ({"speedup": [2.0, 3.0, 4.0]}, "speedup")):
        strategies = {**last["strategies"], "ddtree": {**last["strategies"]["ddtree"], **change}}
        told = Answer(0, json.dumps({**last, "strategies": strategies}), err)
        assert any(words in problem for problem in wrong_numbers(told, tmp_path))
    assert any("exit status 1" in problem for problem in wrong_numbers(Answer(1, out, err), tmp_path))


def test_a_failed_cell_and_an_answer_that_differs_are_noticed(harness, tmp_path, monkeypatch):  # noqa: F811
    out = harness(*FAKE, "suite.limit=2", "sampling.max_new_tokens=4", "+engine.broken=ddtree")
    assert any("cells failed, RuntimeError" in problem for problem in wrong_numbers(Answer(*out), tmp_path))
    out = harness(*FAKE, "suite.limit=2", "sampling.max_new_tokens=4", "+engine.differs=ddtree")
    folder = tmp_path / last_line(out[1])["run"]
    store = Store(folder)
    environment = store.read_json("environment.json")
    environment["engine"]["dtype"] = "float32"
    store.write_json("environment.json", environment)
    assert any("2 answers in greedy fp32" in problem for problem in wrong_numbers(Answer(*out), tmp_path))


def test_a_call_by_the_rules_reads_nothing_that_it_may_not(tmp_path):
    Path(tmp_path / "x.json").write_text("{}")
    (tmp_path / "x.json").chmod(0)
    answer = call("gate", ["x.json", "--against", "x.json"], tmp_path, by_the_rules=True)
    assert answer.status == 2 and "cannot be read: Permission denied" in answer.line
