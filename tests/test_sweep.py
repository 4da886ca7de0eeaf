"""A sweep: what its jobs are, that each has a process of its own, and what is left of it however it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from sweep_engine import FAILS_IN_COLOUR, IN_VAIN, KILLED, LEAVES_A_PROCESS, LEAVES_HALF, LEAVES_NOTHING, PRESSES_CTRL_C

from harness import lines
from harness.errors import UserError
from harness.loading import load
from harness.report import environment, figures, tables, unmeasured, words
from harness.report.subject import read
from harness.store import CELLS, Store
from harness.sweep.jobs import jobs_of, root_of
from harness.sweep.store import Ended, Sweep

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["engine._target_=sweep_engine.SweepEngine", "model=local", "model.path=x", "suite.limit=2", "sampling.max_new_tokens=5"]


def parsed(*overrides):
    return OverridesParser.create().parse_overrides(list(overrides))


def test_jobs_are_every_combination_in_the_order_of_the_command_line():
    jobs = jobs_of(parsed("suite=quick,gsm8k", "strategy.budget=8,16", "~arms.mtp", "measure.seed=3"))
    assert [job.number for job in jobs] == [1, 2, 3, 4]
    assert [job.name for job in jobs] == ["quick budget=8", "quick budget=16", "gsm8k budget=8", "gsm8k budget=16"]
    assert jobs[1].overrides == ("suite=quick", "strategy.budget=16", "~arms.mtp", "measure.seed=3")
    assert jobs[1].label == "suite=quick strategy.budget=16"


def test_a_key_given_twice_has_its_last_values():
    jobs = jobs_of(parsed("strategy.budget=8,12,16", "suite=quick", "strategy.budget=range(2,8,3)"))
    assert [job.label for job in jobs] == ["strategy.budget=2", "strategy.budget=5"]


def test_values_keep_their_quotes():
    jobs = jobs_of(parsed("suite.root='a,b','c d'", "+arms.x.y=[1,2],[3]"))
    assert jobs[0].overrides == ("suite.root='a,b'", "+arms.x.y=[1,2]")
    for job in jobs:
        assert [str(o.value()) for o in parsed(*job.overrides)][0] in ("a,b", "c d")


def test_a_glob_that_fits_nothing_is_refused():
    loader = SimpleNamespace(get_group_options=lambda group, results_filter: ["quick", "gsm8k"] if group == "suite" else [])
    of_groups = OverridesParser.create(config_loader=loader)
    assert [job.label for job in jobs_of(of_groups.parse_overrides(["suite=glob(*)"]))] == ["suite=quick", "suite=gsm8k"]
    for override in ("suite=glob(z*)", "suite.limit=glob(*)"):
        with pytest.raises(UserError, match=r"fits no choice of suite"):
            jobs_of(of_groups.parse_overrides([override]))


def test_one_folder_for_all_jobs():
    assert root_of(parsed("strategy.budget=1,2")) is None
    assert root_of(parsed("measure.root='some where'")) == "some where"
    with pytest.raises(UserError, match="one value"):
        root_of(parsed("measure.root=a,b"))


@dataclass
class Called:
    status: int
    out: str
    err: str

    @property
    def last(self) -> dict:
        return json.loads(self.out.splitlines()[-1])


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness", *arguments]


def variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}


def call(folder: Path, *arguments: str) -> Called:
    done = subprocess.run(command(*arguments), cwd=folder, env=variables(), capture_output=True, text=True, timeout=300)
    return Called(done.returncode, done.stdout, done.stderr)


def files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


BUDGETS = (LEAVES_A_PROCESS, 0, KILLED, IN_VAIN, 8)


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> tuple[Path, Called]:
    """A budget sweep with three jobs that fail, each in its way, and two that do not."""
    folder = tmp_path_factory.mktemp("swept")
    called = call(folder, *SMALL, "experiment=budget_sweep", f"strategy.budget={','.join(map(str, BUDGETS))}")
    return folder / called.last["sweep"], called


def test_failed_jobs_are_recorded_and_do_not_stop_the_rest(swept):
    folder, called = swept
    assert called.status == 1 and not called.last["interrupted"]
    assert folder.parent.name == "sweeps" and folder.name.endswith("-strategy.budget")
    jobs = called.last["jobs"]
    assert [job["overrides"] for job in jobs] == [[f"strategy.budget={budget}"] for budget in BUDGETS]
    assert [job["status"] for job in jobs] == ["done", "failed", "failed", "failed", "done"]
    assert [job.get("reason") for job in jobs] == [
        None,
        "strategy.budget=0: must be 1 or more",
        "ended by signal SIGKILL",
        "no cell could be measured (RuntimeError: out of memory)",
        None,
    ]
    assert jobs[4]["strategies"]["ddtree"]["speedup"] == pytest.approx([2, 2, 2])
    assert "job 2 failed (strategy.budget=0): strategy.budget=0: must be 1 or more" in called.out
    assert f"python -m harness resume={called.last['sweep']}" in called.out


def test_a_job_that_is_not_whole_is_not_done_whatever_its_exit_status(tmp_path):
    budgets = ",".join(map(str, (LEAVES_NOTHING, LEAVES_HALF, PRESSES_CTRL_C, FAILS_IN_COLOUR)))
    called = call(tmp_path, *SMALL, "-m", f"strategy.budget={budgets}")
    assert called.status == 1 and {job["status"] for job in called.last["jobs"]} == {"failed"}
    assert [job["reason"] for job in called.last["jobs"]] == [
        "exit status 0, but its run did not begin",
        "exit status 0, but its run did not end",
        "interrupted, and not by this sweep",
        "out of memory \N{REPLACEMENT CHARACTER}",
    ]


def test_a_line_tells_each_job_and_the_time_left(swept):
    lines = [line for line in swept[1].err.splitlines() if not line.startswith("  ")]
    assert lines[0].startswith("5 jobs into results/sweeps/")
    assert lines[1] == "job 1/5: strategy.budget=15" and lines[2].startswith("job 1/5 done (")
    assert lines[9].startswith("job 5/5: strategy.budget=8, about ") and lines[9].endswith(" left")
    assert any(line.startswith("  4/4 cells") for line in swept[1].err.splitlines()), "a job's own progress shows too"


def test_nothing_of_one_job_reaches_the_next(swept):
    folder, called = swept
    found = [Store(run).read_json("environment.json") for _, run in Sweep.open(folder).done()]
    assert [about["engine"]["built"] for about in found] == [1, 1]
    assert len({about["engine"]["pid"] for about in found}) == 2
    for cache in ("CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT"):
        paths = {about["variables"][cache] for about in found}
        assert len(paths) == 2 and not any(Path(path).parent.exists() for path in paths)
    with pytest.raises(ProcessLookupError):  # what the first job's engine left running is gone
        os.kill(found[0]["engine"]["left"], 0)


def test_each_job_measures_its_own_baseline_in_turn(swept):
    for _, run in Sweep.open(swept[0]).done():
        cells = list(Store(run).cells())
        assert [{cell.key.strategy for cell in cells[at : at + 2]} for at in (0, 2)] == [{"baseline", "ddtree"}] * 2


def test_table_and_plots_lie_in_the_sweeps_folder(swept):
    folder, called = swept
    table = (folder / "table.md").read_text()
    assert "suite quick: 2 of 5 jobs" in table and "| 1 budget=15 ddtree | 200.0 | 2.00×" in table and "baseline |" not in table
    assert "1 budget=15 ddtree" in called.out
    for name in ("budgets.png", "speedups.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_the_report_takes_a_sweep(swept):
    folder, called = swept
    subject = read([str(folder)])
    assert [run.job for run in subject.runs] == ["budget=15", "budget=8"]
    assert tables.runs(subject)["job"].tolist() == ["budget=15", "budget=8"]
    assert tables.headline(subject)["strategy"].tolist()[1] == "A\u00a0·\u00a0budget=15\u00a0· ddtree"
    assert tables.budgets(subject)["node budget"].tolist() == [8, 15] and figures.budgets(subject) is not None
    told = unmeasured.unmeasured(subject).set_index("not measured")["why"]
    assert told["job 2 of a sweep, strategy.budget=0"] == "failed: strategy.budget=0: must be 1 or more"
    commands = environment.commands(subject)
    assert commands.count("python -m harness ") == 1 and "experiment=budget_sweep" in commands
    assert environment.report_command(subject) == f"python -m harness.report {folder.name}"
    assert words.gist(subject)[0].startswith("Run A: 2 prompts")
    with pytest.raises(UserError, match="is a sweep's folder"):
        load(folder)


def test_resuming_it_runs_the_failed_jobs_again_and_no_other(swept):
    folder, called = swept
    kept = {path: state for path, state in files(folder).items() if path.parts[-3] in ("1", "5")}
    again = call(folder.parents[2], f"resume={called.last['sweep']}")
    assert again.status == 1 and len(kept) > 10 and files(folder).items() >= kept.items()
    assert [job["status"] for job in again.last["jobs"]] == [job["status"] for job in called.last["jobs"]]
    begun = [line[:7] for line in again.err.splitlines() if line.startswith("job ") and line[7] == ":"]
    assert begun == ["job 2/5", "job 3/5", "job 4/5"]
    assert len(list((folder / "jobs" / "4").glob("*/config.yaml"))) == 2, "a run in vain is measured anew"
    assert len(list((folder / "jobs" / "3").glob("*/config.yaml"))) == 0, "killed before it had a folder"


def test_a_finished_sweep_is_shown_again_and_nothing_is_written(tmp_path):
    first = call(tmp_path, "-m", *SMALL, "suite.limit=1,2", "measure.root='a folder, mine'")
    assert first.status == 0, first.err
    folder = tmp_path / first.last["sweep"]
    assert folder.parent == tmp_path / "a folder, mine"
    assert first.out.splitlines()[-2] == f"everything is in {first.last['sweep']}"
    before = files(folder)
    again = call(tmp_path, f"resume='{first.last['sweep']}'")
    assert (again.status, again.out) == (0, first.out) and again.err == f"nothing is left to do in {first.last['sweep']}\n"
    assert files(folder) == before
    refused = call(tmp_path, f"resume='{first.last['sweep']}'", "suite.limit=2")
    assert refused.status == 2 and refused.err.startswith("harness: suite.limit=2: cannot be given with resume=")
    shutil.rmtree(folder / "jobs" / "2")
    assert [job.number for job, _ in Sweep.open(folder).done()] == [1], "whose folder is deleted is to be measured anew"
    told = unmeasured.unmeasured(read([str(folder)])).set_index("not measured")["why"]
    assert told["job 2 of a sweep, suite.limit=2"].startswith("not begun")


def test_a_sweep_over_loads_has_their_table(tmp_path):
    busy = ["engine._target_=test_under_load.BusyEngine", *SMALL[1:]]
    called = call(tmp_path, *busy, "-m", "measure.concurrency=null,2")
    assert called.status == 0, called.err
    for text in (called.out, (tmp_path / called.last["sweep"] / "table.md").read_text()):
        assert "Under load" in text and "in flight" in text and "2 concurrency=2 ddtree" in text


def cells_of(folder: Path, job: int) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(f"results/sweeps/*/jobs/{job}/*/{CELLS}"))


def wait_for(condition, process) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.02)


@pytest.fixture
def slow(request, tmp_path):
    """A sweep that is in the midst of its second job, its first one done. A parameter is put before its command."""
    arguments = getattr(request, "param", []) + command(*SMALL, "-m", "strategy.budget=4,8", "+engine.seconds=0.3", "suite.limit=4")
    process = subprocess.Popen(arguments, cwd=tmp_path, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: cells_of(tmp_path, 2) >= 2, process)
    yield process, tmp_path
    process.kill()


def finished_by_resuming(folder: Path, sweep: Path, first: dict) -> None:
    """Both jobs are done, the first untouched, the second in the folder where it began, every cell once."""
    for _ in range(30):  # the job of a killed sweep may still be about to notice
        again = call(folder, f"resume={sweep.relative_to(folder)}")
        if again.status != 2:
            break
        assert again.err.count("\n") == 1 and "another process" in again.err
        time.sleep(1)
    assert again.status == 0, again.err
    assert [job["status"] for job in again.last["jobs"]] == ["done", "done"]
    assert {path: state for path, state in files(sweep / "jobs" / "1").items()} == first
    (run,) = (path.parent for path in (sweep / "jobs" / "2").glob("*/config.yaml"))
    cells = list(Store(run).cells())
    assert len(cells) == len({cell.key for cell in cells}) == 8 and {cell.session for cell in cells} == {0, 1}


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(slow, number):
    process, folder = slow
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    stopped = Called(process.returncode, out, err)
    assert stopped.status == 130 and stopped.last["interrupted"] is True
    assert [job["status"] for job in stopped.last["jobs"]] == ["done", "interrupted"]
    assert f"finish it with: python -m harness resume={stopped.last['sweep']}" in out and "1 budget=4 ddtree" in out
    assert "Traceback" not in err
    sweep = folder / stopped.last["sweep"]
    (run,) = (path.parent for path in (sweep / "jobs" / "2").glob("*/config.yaml"))
    assert Store(run).read_json("summary.json")["interrupted"] is True
    finished_by_resuming(folder, sweep, files(sweep / "jobs" / "1"))


@pytest.mark.slow
@pytest.mark.parametrize("slow", [["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]], indirect=True)
def test_a_sweep_in_the_background_of_a_script_ends_when_told_to(slow):
    process, folder = slow
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    stopped = Called(process.returncode, out, err)
    assert stopped.status == 130 and [job["status"] for job in stopped.last["jobs"]] == ["done", "interrupted"]
    sweep = folder / stopped.last["sweep"]
    finished_by_resuming(folder, sweep, files(sweep / "jobs" / "1"))


def test_a_killed_sweep_goes_on_where_it_was(slow):
    process, folder = slow
    process.kill()
    (sweep,) = folder.glob("results/sweeps/*")
    finished_by_resuming(folder, sweep, files(sweep / "jobs" / "1"))


def test_a_job_has_what_the_command_line_added_to_the_search_path(tmp_path):
    for name, text in (("one/suite/brief.yaml", "name: quick\nlimit: 1\n"), ("two/sampling/short.yaml", "max_new_tokens: 3\n")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    added = ["--config-dir", "one", f"hydra.searchpath=[file://{tmp_path}/two]", "suite=brief", "sampling=short"]
    called = call(tmp_path, *SMALL[:3], *added, "-m", "strategy.budget=4")
    assert called.status == 0, called.err
    cells = list(Store(tmp_path / called.last["jobs"][0]["run"]).cells())
    assert len(cells) == 2 and {len(cell.decoded.tokens) for cell in cells} == {3}


def test_a_damaged_sweep_is_refused_in_one_line(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match="was altered"):
        Sweep.open(tmp_path)
    Store(tmp_path).write_json("sweep.json", {"jobs": []})
    with pytest.raises(UserError, match="not what this version writes"):
        Sweep.open(tmp_path)
    Store(tmp_path).write_json("sweep.json", {"flags": [], "jobs": []})
    lines.append(tmp_path / "jobs.jsonl", {"job": 1})
    with pytest.raises(UserError, match="not what this version writes"):
        Sweep.open(tmp_path).ended()
    (tmp_path / "jobs.jsonl").unlink()
    lines.append(tmp_path / "jobs.jsonl", asdict(Ended(7, "failed", 1, 2.5, None, "a reason")))
    with pytest.raises(UserError, match="job 7 is none of this sweep's"):
        Sweep.open(tmp_path).ended()
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(UserError, match="no sweep's folder"):
        Sweep.open(tmp_path)
