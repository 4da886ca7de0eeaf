"""``python -m harness.gate``: run folders and stored baselines in, text, JSON or annotations and an exit status out."""

import json
import shutil
import subprocess
import sys
from datetime import datetime
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from fake_engine import fake_decoded
from gate_results import ABOUT, result

from harness.gate.__main__ import main
from harness.gate.compare import compare
from harness.gate.output import annotations, markdown
from harness.gate.reading import read, save
from harness.store import CELLS, Cell, Failure, Key, Store
from harness.summary import prompts_sha256

CONFIG = """\
strategy: {name: ddtree, _target_: strategies.ddtree.build, budget: 16, drafter: /home/someone/drafters/mine/}
arms: {baseline: {name: baseline, _target_: strategies.baseline.build}}
engine: {name: torch}
model: {name: m, dtype: auto}
suite: {name: quick}
sampling: {temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0, max_new_tokens: 9}
measure: {baseline: baseline}
"""
ENVIRONMENT = {
    "cpu": {"model": "Example CPU", "usable_cores": 2},
    "gpus": [{"name": "Example GPU"}],
    "git": {"commit": "c", "dirty": False},
    "torch": {"version": "2"},
    "engine": {"dtype": "torch.float32", "model_sha256": "abc", "device": "cpu", "threads": 2},
    "suite": {"name": "quick", "sha256": "def"},
}


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """A function that writes a run's folder of eight prompts: ddtree's round takes ``round_s``, the baseline's 10 ms."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def make(label, round_s=0.01, a_round=2, failing=None, config=CONFIG):
        store = Store.create("runs", label, datetime(2026, 1, 2))
        store.write_text("config.yaml", config)
        store.write_json("environment.json", {**ENVIRONMENT, "config_sha256": sha256(config.encode()).hexdigest()})
        for order, (prompt, strategy, repetition) in enumerate(
            (p, s, r) for r in range(2) for p in "abcdefgh" for s in ("baseline", "ddtree")
        ):
            fast = strategy == "ddtree"
            decoded = fake_decoded(range(9), a_round if fast else 1, round_s=round_s if fast else 0.01)
            cell = Cell(Key(prompt, 0, strategy, repetition), "chat", order, 3, f"sha-{prompt}", decoded)
            if (strategy, prompt, repetition) == failing:
                cell = Cell(cell.key, "chat", order, 3, f"sha-{prompt}", failure=Failure("E", "why"))
            store.append(cell)
        return str(store.folder)

    return make


def said(capsys, *arguments):
    status = main(arguments)
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    return status, shown.out, shown.err


def test_two_runs_and_a_stored_baseline(make_run, capsys):
    good, same, slow = make_run("good"), make_run("same"), make_run("slow", round_s=0.012)
    assert said(capsys, "--save", "cpu", good)[0] == 0
    stored = (good, "cpu", "results/baselines/cpu.json")
    for baseline in stored:
        status, out, err = said(capsys, same, "--against", baseline)
        assert (status, err) == (0, "") and out.splitlines()[-1] == "gate: pass; tolerance 5 %"
    status, out, _ = said(capsys, slow, "--against", "cpu")
    assert status == 1 and out.splitlines()[-1] == "gate: regressed (ddtree speedup); tolerance 5 %"
    assert said(capsys, slow, "--against", "cpu", "--tolerance", "0.2")[0] == 0
    assert said(capsys, slow, "--against", "cpu", "--only", "acceptance")[0] == 0
    assert said(capsys, good, "--against", "cpu", "--absolute", "--common", "--strategy", "ddtree")[0] == 0


def test_runs_in_batches_of_other_sizes_have_no_speeds_to_compare(make_run, capsys):
    alone, eight = make_run("alone"), make_run("eight", config=CONFIG.replace("{baseline: baseline}", "{baseline: baseline, batch: 8}"))
    assert (read(alone).about.batch, read(eight).about.batch) == (1, 8) and said(capsys, "--save", "eight", eight)[0] == 0
    for baseline in (eight, "eight"):
        status, out, err = said(capsys, alone, "--against", baseline)
        assert (status, out) == (2, "") and "batch: 1 in the candidate, 8 in the baseline" in err and "--only acceptance" in err
        assert said(capsys, alone, "--against", baseline, "--only", "acceptance")[0] == 0
    assert said(capsys, eight, "--against", "eight")[0] == 0


def test_a_stored_baseline_is_what_the_run_was_and_names_no_place(make_run):
    run = read(make_run("good"))
    file = save("cpu", run)
    assert read("cpu") == run
    text = file.read_text()
    assert "/home" not in text and run.about.strategies["ddtree"]["drafter"] == "mine"
    assert run.about.exact and len(text.splitlines()) < 70 and all(len(line) < 1000 for line in text.splitlines())
    outcome = run.of("ddtree")["a", 0].outcomes[1]
    assert (outcome.output_tokens, outcome.rounds, outcome.accepted) == (9, 4, 4)
    assert outcome.decode_tokens_per_s == pytest.approx(200)


def test_a_failed_cell_regresses_and_is_not_read_as_unequal(make_run, capsys):
    good, failing = make_run("good"), make_run("failing", failing=("ddtree", "b", 1))
    status, out, _ = said(capsys, failing, "--against", good)
    assert status == 1 and "gate: regressed (ddtree failed cells)" in out
    assert said(capsys, good, "--against", failing)[0] == 0
    status, _, err = said(capsys, "--save", "cpu", failing)
    assert status == 0 and "1 cells" in err


def test_json_is_the_whole_output(make_run, capsys):
    status, out, _ = said(capsys, make_run("a"), "--against", make_run("b", a_round=3), "--format", "json")
    found = json.loads(out)
    assert status == 1 and found["verdict"] == "regressed" and found["exact_acceptance"] is True
    speedup = next(f for f in found["figures"] if f["name"] == "speedup")
    assert len(speedup["change"]) == 3 and speedup["verdict"] == "regressed"


def test_github_gets_annotations_and_a_summary(make_run, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    status, out, _ = said(capsys, make_run("slow", 0.012), "--against", make_run("good"), "--format", "github")
    assert status == 1
    assert "::error title=ddtree%3A speedup regressed::1.667×, baseline 2×, change -16.7 %25 [" in out
    assert out.splitlines()[-1].startswith("::error title=speculative decoding gate::gate: regressed")
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("## Speculative decoding gate: regressed\n\n| strategy | figure |")


def test_the_three_verdicts_are_error_warning_and_notice():
    one = compare(result([2.0]), result([2.1]))
    assert "::warning title=ddtree%3A speedup inconclusive::" in annotations(one)
    assert annotations(compare(result(), result())) == "::notice title=speculative decoding gate::gate: pass; tolerance 5 %25"
    assert markdown(one).count("| ddtree |") == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "RUN"),
        (["{run}"], "--against --save"),
        (["{run}", "--against", "a", "--save", "b"], "not allowed"),
        (["{run}", "--against", "nowhere"], "no baseline results/baselines/nowhere.json"),
        (["nowhere", "--against", "{run}"], "nowhere"),
        (["{run}", "--against", "{run}", "--tolerance", "5"], "from 0 to below 0.5"),
        (["{run}", "--against", "{run}", "--tolerance", "nan"], "from 0 to below 0.5"),
        (["{run}", "--against", "{run}", "--strategy", "eagle"], "strategy eagle: not in the candidate"),
        (["{run}", "--against", "{run}", "--onl", "speed"], "--onl"),
        ([".", "--against", "{run}"], "is no run's folder: it holds no config.yaml"),
        (["--save", "runs/x/y.json", "{file}"], "format"),
        (["--save", "x", "{run}", "--only", "speed"], "--only: not allowed with argument --save"),
        (["--save", "x", "{run}", "--strategy", "ddtree"], "--strategy: not allowed with argument --save"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments, words, make_run, capsys, tmp_path):
    run = make_run("x")
    (tmp_path / "file.json").write_text('{"format": 7}')
    status, out, err = said(capsys, *(a.format(run=run, file="file.json") for a in arguments))
    assert (status, out, err.count("\n")) == (2, "", 1) and err.startswith("gate: ") and words in err


@pytest.mark.parametrize("name", [CELLS, "config.yaml", "environment.json"])
@pytest.mark.parametrize("damage", ["", "{}\n", "[1, 2]\n", "nonsense: [\n", "\x00\x01", '{"prompt": "a"}\n'])
def test_a_damaged_run_is_one_line_and_status_2(name, damage, make_run, capsys, tmp_path):
    run = make_run("x")
    (tmp_path / run / name).write_text(damage)
    status, out, err = said(capsys, run, "--against", run)
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_a_config_that_was_changed_after_the_run_is_refused(make_run, capsys, tmp_path):
    run = make_run("x")
    (tmp_path / run / "config.yaml").write_text(CONFIG.replace("budget: 16", "budget: 17"))
    status, out, err = said(capsys, run, "--against", make_run("y"))
    assert (status, out) == (2, "") and "is not the one that the run began with" in err


def test_a_finished_run_that_lacks_a_cell_is_refused(make_run, capsys, tmp_path):
    run = make_run("x")
    store = Store(tmp_path / run)
    cells = list(store.cells())
    counted = {name: {"cells": 16} for name in ("baseline", "ddtree")}
    store.write_json("summary.json", {"interrupted": False, "strategies": counted, "prompts_sha256": prompts_sha256(cells)})
    assert said(capsys, run, "--against", run)[0] == 0
    data = (tmp_path / run / CELLS).read_bytes().splitlines(keepends=True)
    (tmp_path / run / CELLS).write_bytes(b"".join(data[:-1]))
    status, out, err = said(capsys, run, "--against", make_run("y"))
    assert (status, out) == (2, "") and "15 cells of ddtree" in err


@pytest.mark.parametrize("damage", ["", "[]", '{"format": 1}', '{"format": 1, "about": {}, "answers": []}', "\x00"])
def test_a_damaged_baseline_is_one_line_and_status_2(damage, make_run, capsys, tmp_path):
    (tmp_path / "b.json").write_text(damage)
    status, out, err = said(capsys, make_run("x"), "--against", "b.json")
    assert (status, out, err.count("\n")) == (2, "", 1) and "b.json" in err


@pytest.mark.parametrize("junk", [None, "junk", -1, 1.5, [], {}, [None], [["x"]]])
def test_no_junk_in_a_baseline_ends_in_a_traceback(junk, make_run, capsys, tmp_path):
    run = make_run("x")
    main(["--save", "good.json", run])
    whole = json.loads((tmp_path / "good.json").read_text())
    places = [(whole, k) for k in whole] + [(whole["about"], k) for k in whole["about"]]
    places += [(whole["answers"][1], k) for k in whole["answers"][1]] + [(whole["about"]["sampling"], "temperature")]
    for holder, name in places:
        kept, holder[name] = holder[name], junk
        (tmp_path / "junk.json").write_text(json.dumps(whole))
        holder[name] = kept
        status, _, err = said(capsys, run, "--against", "junk.json")
        assert status in (0, 1, 2, 3) and err.count("\n") == (status == 2), name


def test_a_baseline_that_cannot_be_written_is_one_line(make_run, capsys, tmp_path):
    (tmp_path / "results").write_text("a file")
    status, _, err = said(capsys, "--save", "cpu", make_run("x"))
    assert status == 2 and "cannot be written" in err


def test_a_job_summary_that_cannot_be_written_changes_no_verdict(make_run, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "absent" / "summary.md"))
    run = make_run("x")
    status, out, err = said(capsys, run, "--against", run, "--format", "github")
    assert status == 0 and out.splitlines()[-1].startswith("::notice ")
    assert err.startswith("gate: GITHUB_STEP_SUMMARY=") and "cannot be written (No such file or directory)" in err and err.count("\n") == 1


def test_the_workflow_calls_the_gate_as_it_is(make_run, tmp_path):
    """Its step "Compare" is run as bash would on a runner, with a run that regressed and one that passes."""
    root = Path(__file__).parent.parent
    workflow = yaml.safe_load((root / ".github/workflows/speculative-decoding-gate.yml").read_text())
    steps = {step.get("name"): step.get("run") for step in workflow["jobs"]["gate"]["steps"]}
    main(["--save", "cpu-fp32", make_run("good")])
    variables = {"BASELINE": "cpu-fp32", "OPTIONS": "--tolerance 0.05", "FAIL_WHEN_INCONCLUSIVE": "false", "PYTHONPATH": str(root)}
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    statuses = []
    for label, round_s in (("slow", 0.012), ("same", 0.01)):
        (tmp_path / "runs/gate").mkdir(exist_ok=True)
        shutil.move(make_run(label, round_s), tmp_path / "runs/gate" / label)
        (tmp_path / "results/runs").unlink(missing_ok=True)
        (tmp_path / "results/runs").symlink_to(tmp_path / "runs")
        done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", steps["Compare"]], cwd=tmp_path, text=True,
                              capture_output=True, env={**variables, "PATH": path})  # fmt: skip
        statuses.append((done.returncode, done.stdout.splitlines()[-1][:9]))
        shutil.rmtree(tmp_path / "runs/gate" / label)
    assert statuses == [(1, "::error t"), (0, "::notice ")]


def test_help_shows_examples_and_exit_statuses(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert "--save cpu-fp32" in shown and "3 inconclusive" in shown and "5 %" in shown
    assert ABOUT.baseline_arm in shown
