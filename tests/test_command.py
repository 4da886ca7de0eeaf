"""The command line with a made-up engine: what it prints, what it writes, and how it answers wrong input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fake_engine import FakeEngine
from omegaconf import OmegaConf

from harness import busy
from harness.__main__ import main
from harness.schemas import read
from harness.suites import SuiteConfig, load

ROOT = Path(__file__).resolve().parent.parent
FAKE = ["engine._target_=fake_engine.FakeEngine", "model=local", "model.path=x"]
SHORT = ["suite.limit=3", "sampling.max_new_tokens=5"]


@pytest.fixture
def harness(tmp_path, monkeypatch, capsys, loggers_as_before):
    """``harness(*arguments)`` gives exit status, stdout and stderr; run folders go under a temporary folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def call(*arguments: str):
        monkeypatch.setattr(sys, "argv", ["harness", *arguments])
        try:
            status = main()
        except SystemExit as stop:  # --help and --cfg end in Hydra
            status = stop.code or 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def last_line(out: str) -> dict:
    return json.loads(out.splitlines()[-1])


def test_a_run_prints_a_table_and_leaves_a_folder(harness, tmp_path):
    status, out, err = harness(*FAKE, *SHORT)
    assert status == 0
    result = last_line(out)
    assert set(result) == {"run", "interrupted", "strategies"} and result["interrupted"] is False
    assert list(result["strategies"]) == ["baseline", "ddtree"]
    assert result["strategies"]["ddtree"]["speedup"] == pytest.approx([2, 2, 2])
    folder = tmp_path / result["run"]
    assert folder.parent == tmp_path / "results/runs" and folder.name.endswith("-ddtree-torch-local-quick")
    names = {"config.yaml", "environment.json", "cells.jsonl", "summary.json", "samples.jsonl", "table.md", "plot.png"}
    assert {path.name for path in folder.iterdir()} == names
    assert len((folder / "cells.jsonl").read_text().splitlines()) == 6
    assert json.loads((folder / "summary.json").read_text())["interrupted"] is False
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["engine"] == {"fake": True} and len(environment["suite"]["sha256"]) == 64
    assert environment["variables"]["GOMP_SPINCOUNT"] == "20000", "what the harness sets is on record too"
    assert "6/6 cells" in err and {p.name for p in tmp_path.iterdir()} == {"results"}, "Hydra leaves nothing behind"


def test_compare_measures_every_strategy(harness):
    _, out, _ = harness(*FAKE, *SHORT, "experiment=compare", "strategy.budget=9")
    result = last_line(out)
    assert list(result["strategies"]) == ["baseline", "mtp", "dflash", "ddtree"]
    assert "budget: 9" in Path(result["run"], "config.yaml").read_text()


def test_an_arm_of_ones_own_and_no_baseline(harness):
    add = ["+strategy@arms.small=ddtree", "arms.small.budget=4"]
    _, out, _ = harness(*FAKE, *SHORT, *add, "~arms.baseline", "measure.baseline=small")
    assert list(last_line(out)["strategies"]) == ["small", "ddtree"]
    _, out, _ = harness(*FAKE, *SHORT, "~arms.baseline", "measure.baseline=null")
    assert last_line(out)["strategies"]["ddtree"]["speedup"] is None


def test_a_budget_left_to_the_clock_has_a_fixed_one_beside_it(harness):
    def arms(*arguments):
        _, out, _ = harness(*FAKE, *SHORT, *arguments)
        folder = Path(last_line(out)["run"])
        assert list(OmegaConf.load(folder / "config.yaml").arms) == [*list(last_line(out)["strategies"])[:-1]]
        return list(last_line(out)["strategies"])

    assert arms("strategy.budget=auto") == ["baseline", "ddtree_fixed", "ddtree"]
    assert arms("strategy.budget=auto", "+strategy@arms.usual=ddtree") == ["baseline", "usual", "ddtree"]
    small = ["+strategy@arms.small=ddtree", "arms.small.budget=4"]
    assert arms("strategy.budget=auto", *small) == ["baseline", "small", "ddtree_fixed", "ddtree"]
    tuned = ["strategy=mtp", "+strategy@arms.tuned=ddtree", "arms.tuned.budget=auto"]
    assert arms(*tuned) == ["baseline", "tuned", "tuned_fixed", "mtp"]


def test_the_baseline_alone(harness):
    _, out, _ = harness(*FAKE, *SHORT, "strategy=baseline")
    assert list(last_line(out)["strategies"]) == ["baseline"]


def test_a_wrong_answer_shows(harness):
    _, out, _ = harness(*FAKE, *SHORT, "+engine.differs=ddtree")
    assert last_line(out)["strategies"]["ddtree"]["identical"] == 0


def test_round_times_are_taken_unless_told_otherwise(harness):
    for options, taken in (((), True), (("measure.round_times=false",), False)):
        _, out, _ = harness(*FAKE, *SHORT, *options)
        figures = json.loads(Path(last_line(out)["run"], "summary.json").read_text())["strategies"]["ddtree"]
        assert (figures["mean_round"]["verify_s"] is not None) == taken and figures["chunk_s"]["p50"] > 0


def test_a_wrong_answer_in_greedy_fp32_is_loud(harness, monkeypatch):
    monkeypatch.setattr(FakeEngine, "settings", lambda self: {"dtype": "float32"})
    _, out, _ = harness(*FAKE, *SHORT, "+engine.differs=ddtree")
    assert "NOT LOSSLESS: ddtree" in out
    assert "NOT LOSSLESS: ddtree" in Path(last_line(out)["run"], "table.md").read_text()


def test_failed_cells_are_told_and_the_run_goes_on(harness):
    status, out, _ = harness(*FAKE, *SHORT, "+engine.broken=ddtree", "measure.repetitions=2")
    assert status == 0 and "failed 6 times: RuntimeError: a fault over two lines" in out
    assert last_line(out)["strategies"]["ddtree"]["decode_tokens_per_s"] is None


def test_nothing_but_failures_is_no_success(harness):
    status, out, _ = harness(*FAKE, *SHORT, "+engine.context_length=6")
    assert status == 1 and last_line(out)["strategies"]["baseline"]["rounds"] == 0


def test_answers_that_can_be_cut_by_the_context_are_told_at_the_start(harness):
    lengths = [len(FakeEngine(None, {}).render([{"role": "user", "content": row.turns[0]}])) for row in load(SuiteConfig(limit=3)).rows]
    context = sorted(lengths)[1] + 1  # the longest prompt does not fit, the middle one leaves one token, the shortest five
    assert sorted(lengths)[0] + 5 <= context < sorted(lengths)[2]
    _, _, err = harness(*FAKE, *SHORT, f"+engine.context_length={context}")
    told = [line for line in err.splitlines() if "sampling.max_new_tokens=5" in line]
    assert len(told) == 1 and told[0].startswith("2 of 3 prompts leave less than") and "1 of them leave none" in told[0]
    _, _, err = harness(*FAKE, *SHORT)
    assert "leave less than" not in err


def test_a_busy_machine_is_told_at_the_start_and_afterwards(harness, monkeypatch):
    for cores, lines in ((1.9 * os.cpu_count(), 1), (0.0, 0)):
        monkeypatch.setattr(busy.OtherWork, "cores", lambda self, cores=cores: cores)
        _, out, err = harness(*FAKE, *SHORT)
        assert sum("machine is busy" in line and "stop that" in line for line in err.splitlines()) == lines
        assert err.count("the machine was busy meanwhile") == lines
        environment = json.loads(Path(last_line(out)["run"], "environment.json").read_text())
        assert environment["cpu"]["other_work_cores"] == cores


@pytest.mark.parametrize("call, finished", [(5, 2), (1, 0)])
def test_ctrl_c_keeps_what_is_finished(harness, call, finished):
    status, out, _ = harness(*FAKE, *SHORT, f"+engine.interrupt_at={call}")  # calls 1 and 2 are the warm-up
    assert status == 130 and "interrupted" in out and last_line(out)["interrupted"] is True
    cells = Path(last_line(out)["run"], "cells.jsonl")
    assert (len(cells.read_text().splitlines()) if cells.exists() else 0) == finished


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["strategy=dtree"], ["strategy=dtree", "did you mean ddtree?", "baseline, ddtree, dflash, mtp"]),
        (["model=gpt5"], ["model=gpt5", "smollm2-135m"]),
        (["suite=quik"], ["suite=quik", "did you mean quick?"]),
        (["strategy.budgt=3"], ["strategy.budgt", "did you mean strategy.budget?"]),
        (["+strategy.bugdet=3"], ["strategy.bugdet", "did you mean budget?"]),
        (["strategy.budget=many"], ["strategy.budget=many: must be a whole number or auto"]),
        (["strategy.budget=0"], ["budget=0"]),
        (["~strategy.budget"], ["strategy.budget: missing"]),
        (["strategy._target_=nowhere.build"], ["nowhere.build", "imported"]),
        (["+engine.warp=9"], ["engine.warp", "context_length"]),
        (["model.path=null"], ["model.path=null", "model.path=FOLDER"]),
        (["+model.size=3"], ["model.size", "dtype"]),
        (["sede=3"], ["sede", "measure"]),
        (["+seed=3"], ["seed", "measure"]),
        (["sampling.temperature=-1"], ["temperature=-1", "0 (greedy)"]),
        (["sampling.temperature=inf"], ["temperature=inf"]),
        (["sampling.top_p=0"], ["top_p=0"]),
        (["sampling.top_k=-1"], ["top_k=-1"]),
        (["sampling.seed=-1"], ["sampling.seed=-1"]),
        (["sampling.seed=9223372036854775808"], ["sampling.seed=9223372036854775808", "below 2**63"]),
        (["sampling.max_new_tokens=0"], ["max_new_tokens=0"]),
        (["sampling.max_new_tokens=1.5"], ["sampling.max_new_tokens", "1.5"]),
        (["suite.limit=0"], ["suite.limit=0"]),
        (["suite.limit=abc"], ["suite.limit=abc: must be a whole number or null"]),
        (["suite.limit=[1]"], ["suite.limit=[1]: must be a whole number or null"]),
        (["suite.root=[a]"], ["suite.root=['a']: must be text or null"]),
        (["sampling.max_new_tokens=1e9"], ["sampling.max_new_tokens=1000000000.0: must be a whole number; write 1000000000"]),
        (["sampling.max_new_tokens=null"], ["sampling.max_new_tokens=null: must be a whole number"]),
        (["sampling.temperature=hot"], ["sampling.temperature=hot: must be a number"]),
        (["measure.round_times=perhaps"], ["measure.round_times=perhaps: must be true or false"]),
        (["measure.seed=true"], ["measure.seed=true: must be a whole number"]),
        (["engine.threads=abc"], ["engine.threads=abc: must be a whole number or null"]),
        (["sampling.top_p=${nope}"], ["sampling.top_p", "'nope' not found"]),
        (["sampling=null"], ["sampling=null", "one of its choices"]),
        (["arms=null"], ["arms=null", "group of keys"]),
        (["arms.baseline=null"], ["arms.baseline=null", "~arms.baseline"]),
        (["strategy.name=null"], ["strategy.name=null", "text"]),
        (["sampling.max_new_tokens=100000"], ["sampling.max_new_tokens=100000", "holds 100000 tokens"]),
        (["--resolve"], ["--resolve", "--cfg"]),
        (["measure.repetitions=0"], ["repetitions=0"]),
        (["measure.seed=-1"], ["measure.seed=-1"]),
        (["measure.warmup=-1"], ["warmup=-1"]),
        (["measure.root=''"], ["measure.root="]),
        (["measure.baseline=mtp"], ["measure.baseline=mtp", "ddtree"]),
        (["arms.mtp.k=2"], ["arms.mtp", "arms.baseline"]),
        (["strategy.budget=1,2"], ["strategy.budget=1,2", "--multirun", "give one"]),
        (["strategy.budget"], ["strategy.budget", "KEY=VALUE"]),
        (["hydra.searchpath=[pkg://nope.conf]", "strategy=mine"], ["nope.conf", "is not there"]),
        (["-m", "strategy.budgt=1,2"], ["strategy.budgt=1,2", "did you mean strategy.budget?"]),
        (["-m", "strategy=dtree,dflas"], ["strategy=dtree", "did you mean ddtree?"]),
        (["-m", "strategy.budget=interval(1,3)"], ["strategy.budget=interval(1,3)", "range(FIRST,END,STEP)"]),
        (["-m", "resume=a,b"], ["resume=a,b", "resume=FOLDER"]),
        (["-m", "measure.root=a,b"], ["measure.root=a,b", "one value"]),
        (["-m", "hydra/launcher=basic"], ["hydra/launcher=basic", "process of its own"]),
        (["experiment=budget_sweep", "strategy=dflash"], ["strategy.budget: unknown key"]),
        (["--multirun", "--cfg", "job"], ["--multirun", "leave one out"]),
        (["--nope"], ["--nope", "--help"]),
        (["--shell-completion"], ["--shell-completion", "install=SHELL"]),
        (["+engine.fault=out of memory"], ["engine: cannot be built (MemoryError: out of memory)"]),
    ],
)
def test_wrong_input_gets_one_line_before_anything_is_measured(harness, tmp_path, arguments, words):
    status, out, err = harness(*FAKE, *SHORT, *arguments)
    assert status == 2 and out == "" and len(err.splitlines()) == 1, err
    assert all(word in err for word in words), err
    assert list(tmp_path.iterdir()) == []


def test_help_explains_every_group_and_cfg_shows_what_would_run(harness, tmp_path):
    _, out, _ = harness("--help")
    for word in ("strategy", "engine", "model", "suite", "sampling", "measure", "experiment", "arms", "python -m harness "):
        assert f"\n{word}" in out
    assert "Hydra (https" not in out and "== Sweeps ==" in out and "budget_sweep" in out
    _, out, _ = harness("--cfg", "job", "experiment=compare", "strategy.budget=5")
    assert "budget: 5" in out and "dflash:" in out and "hydra" not in out
    assert list(tmp_path.iterdir()) == []


def test_hydras_own_help_needs_no_configuration(harness):
    for arguments in (["--hydra-help"], ["suite.limit=2", "--hydra-help"], ["experiment=budget_sweep", "--hydra-help", "-m"]):
        status, out, err = harness(*arguments)
        assert (status, err) == (0, "") and "--multirun,-m" in out


@pytest.mark.parametrize("module", ["harness --help", "harness.suites list --json", "harness.gate results/baselines/cpu-fp32.json --against cpu-fp32"])
def test_a_reader_that_leaves_early_ends_the_program_without_a_traceback(module):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", *module.split()], stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_strategy_of_another_package_runs_by_its_search_path_alone(tmp_path):
    """In a process of its own, in another folder, with a package that this repository has never heard of."""
    package = tmp_path / "packages" / "mypackage"
    (package / "conf" / "strategy").mkdir(parents=True)
    (package / "__init__.py").write_text("def build(target, name, patience: int):\n    return None\n")
    (package / "conf" / "__init__.py").write_text("")
    text = "name: mine\n_target_: mypackage.build\npatience: 3\n"
    (package / "conf" / "strategy" / "mine.yaml").write_text(text)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(package.parent)])
    command = [sys.executable, "-m", "harness", "hydra.searchpath=[pkg://mypackage.conf]", "strategy=mine", *FAKE]

    def call(*arguments):
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run([*command, *SHORT, *arguments], capture_output=True, text=True, cwd=tmp_path, env=environment)
        return done.returncode, done.stdout, done.stderr

    status, out, err = call("strategy.patience=4")
    assert status == 0, err
    assert list(last_line(out)["strategies"]) == ["baseline", "mine"]
    status, _, err = call("+strategy.hurry=1")
    assert status == 2 and "strategy.hurry" in err and len(err.splitlines()) == 1


def test_several_suites_in_one_run_have_a_table_of_each(harness, tmp_path):
    status, out, err = harness(*FAKE, "suite=three", "suite.of=[quick]", "suite.limit=3", "sampling.max_new_tokens=5")
    assert status == 0, err
    folder = tmp_path / last_line(out)["run"]
    assert "Each suite by itself" in out and "quick · ddtree" in out and folder.name.endswith("-local-three")
    assert "| quick · ddtree |" in (folder / "table.md").read_text()
    found = json.loads((folder / "environment.json").read_text())["suite"]
    assert found["name"] == "three" and found["of"][0]["sha256"] == load(SuiteConfig()).checksum
    assert {json.loads(line)["category"] for line in (folder / "cells.jsonl").read_text().splitlines()} == {"quick"}
    status, out, err = harness(f"resume={folder}")
    assert (status, err.splitlines()[-1]) == (0, f"nothing is left to do in {folder}") and "quick · ddtree" in out


@pytest.mark.parametrize("given", ["5", "[1,[2]]", "{a: 1}"])
def test_a_mix_that_is_no_list_of_suites_is_refused(harness, given):
    status, out, err = harness(*FAKE, "suite=three", f"suite.of={given}")
    assert status == 2 and err.count("\n") == 1 and "suite.of" in err


def test_the_experiment_of_budgets_in_vllm_has_every_arm_once(harness):
    status, out, _ = harness("experiment=vllm_budgets", "--cfg", "job")
    config = yaml.safe_load(out)
    assert status == 0 and config["engine"]["name"] == "vllm" and config["suite"]["of"] == ["gsm8k", "humaneval", "mt_bench"]
    plan = read(OmegaConf.create({key: value for key, value in config.items() if key != "resume"}))
    assert {name: arm.get("budget") for name, arm in plan.arms.items()} == {
        "baseline": None, "dflash": None, "ddtree_15": 15, "ddtree_31": 31, "ddtree": 63
    }  # fmt: skip
    assert list(plan.arms)[-1] == "ddtree" and all(arm.vllm_full_graphs for name, arm in plan.arms.items() if "ddtree" in name)


def test_ddtree_in_vllm_can_be_measured_with_and_without_whole_passes_captured(harness):
    beside = ("+strategy@arms.ddtree_pieces=ddtree", "arms.ddtree_pieces.budget=31", "arms.ddtree_pieces.vllm_full_graphs=false")
    status, out, _ = harness("experiment=vllm_budgets", *beside, "--cfg", "job")
    arms = yaml.safe_load(out)["arms"]
    assert status == 0 and {name for name, arm in arms.items() if arm.get("vllm_full_graphs") is False} == {"ddtree_pieces"}
