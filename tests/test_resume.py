"""A run that was killed goes on where its store ends; what was damaged is told in one line."""

import shlex
import shutil
from collections import Counter
from pathlib import Path

import pytest
from fake_engine import FakeEngine, measure
from hydra.core.override_parser.overrides_parser import OverridesParser
from test_command import FAKE, SHORT, harness, last_line  # noqa: F401  (a fixture)

from benchmarks.kill_resume import Trial, without_times
from harness import lines
from harness.errors import UserError
from harness.measuring import Schedule
from harness.records import Sampling
from harness.resume import command
from harness.schemas import GROUPS
from harness.store import CELLS, CONTROL, SAMPLES, Store
from harness.suites import Row

ROWS = [Row(id=f"t/{i}", category="chat", turns=("hello", "and then?", "and?")[: 1 + i % 3]) for i in range(5)]
SCHEDULE = Schedule(ROWS, ("baseline", "ddtree"), Sampling(max_new_tokens=4), repetitions=2, seed=0)
WHOLE = measure(FakeEngine(None, {}), SCHEDULE)


def same(cells) -> list:
    return [(c.key, c.order, c.prompt_sha256, c.text, c.failure and c.failure.kind) for c in cells]


@pytest.mark.parametrize("history_of", [None, "baseline"])
@pytest.mark.parametrize("kept", range(0, len(WHOLE), 5))
def test_the_missing_cells_are_what_they_would_have_been(kept, history_of):
    schedule = Schedule(**{**vars(SCHEDULE), "history_of": history_of})
    whole = measure(FakeEngine(None, {}, differs="ddtree"), schedule)
    finished = {cell.key: cell for cell in whole[:kept]}
    rest = measure(FakeEngine(None, {}, differs="ddtree"), schedule, finished, session=1)
    assert same([*whole[:kept], *rest]) == same(whole)
    assert {cell.session for cell in rest} == {1} and [c.key for c in whole] == list(schedule.keys())


def test_failures_stay_and_end_their_conversation():
    whole = measure(FakeEngine(None, {}, broken="ddtree"), SCHEDULE)
    finished = {cell.key: cell for cell in whole if cell.key.turn == 0}
    rest = measure(FakeEngine(None, {}), SCHEDULE, finished)
    assert {c.failure.kind for c in rest if c.key.strategy == "ddtree"} == {"TurnBefore"}


def test_every_cut_of_the_last_line_is_repaired(tmp_path):
    store = Store(tmp_path)
    for cell in WHOLE[:3]:
        store.append(cell)
    whole = (tmp_path / CELLS).read_bytes()
    second = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in [*range(second, len(whole), 7), len(whole) - 1]:
        (tmp_path / CELLS).write_bytes(whole[:end])
        assert len(list(store.cells())) == 2, "reading passes over it"
        assert lines.repair(tmp_path / CELLS) == end - second
        store.append(WHOLE[2])
        assert (tmp_path / CELLS).read_bytes() == whole


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Holds the folder of a run that was interrupted after two of six cells, once it has been made."""
    return tmp_path_factory.mktemp("interrupted") / "run"


@pytest.fixture
def cut(harness, interrupted, tmp_path):  # noqa: F811
    """``harness`` and a folder of its own to resume."""
    if not interrupted.exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FakeEngine, "interrupted_call", 5)
            _, out, _ = harness(*FAKE, *SHORT)
        shutil.move(last_line(out)["run"], interrupted)
    shutil.copytree(interrupted, tmp_path / "run")
    return harness, Path("run")


def test_an_interrupted_run_says_how_to_finish_it_and_is_finished_in_its_folder(cut):
    harness, folder = cut
    assert "python -m harness resume=results/runs/" in (folder / "table.md").read_text()
    before = (folder / CELLS).read_bytes()
    status, out, err = harness(f"resume={folder}")
    assert status == 0 and last_line(out)["run"] == str(folder) and "4 cells" in err
    assert (folder / CELLS).read_bytes().startswith(before)
    cells = list(Store(folder).cells())
    assert len({c.key for c in cells}) == len(cells) == 6 and [c.session for c in cells] == [0] * 2 + [1] * 4
    assert "resumed: 2 cells are from before" in out
    summary = Store(folder).read_json("summary.json")
    assert summary["interrupted"] is False
    _, undisturbed, _ = harness(*FAKE, *SHORT)
    other = Store(Path(last_line(undisturbed)["run"])).read_json("summary.json")
    assert without_times(summary) == without_times(other)
    assert (folder / "environment-1.json").exists()


def test_a_finished_run_is_shown_again_and_nothing_is_written(cut):
    harness, folder = cut
    _, first, _ = harness(f"resume={folder}")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    status, out, err = harness(f"resume={folder}")
    assert status == 0 and err == f"nothing is left to do in {folder}\n" and out == first
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["table.md", "plot.png", "summary.json"])
def test_what_a_kill_kept_a_finished_run_from_writing_is_written(cut, name):
    harness, folder = cut
    harness(f"resume={folder}")
    (folder / name).unlink()
    status, _, err = harness(f"resume={folder}")
    assert status == 0 and "0 cells" in err and (folder / name).is_file()


def test_a_damaged_summary_is_written_anew(cut):
    harness, folder = cut
    harness(f"resume={folder}")
    damage(folder / "summary.json", b'"rounds": ', b'"rounds": 1')
    with pytest.raises(UserError, match="resume=run writes it anew"):
        Store(folder).read_json("summary.json")
    harness(f"resume={folder}")
    assert Store(folder).read_json("summary.json")["strategies"]["baseline"]["rounds"] == 12


@pytest.mark.parametrize(
    "change",
    [
        lambda summary: summary["strategies"]["ddtree"].update(rounds=1),
        lambda summary: summary["strategies"]["ddtree"].pop("tpot_s"),
        lambda summary: summary.pop("strategies"),
        lambda summary: summary.update(notes=[7]),
        lambda summary: summary.pop("interrupted"),
    ],
)
def test_a_summary_that_another_version_wrote_is_written_anew(cut, change):
    """Its checksum is right, but it is not what the cells say now."""
    harness, folder = cut
    harness(f"resume={folder}")
    store, right = Store(folder), Store(folder).read_json("summary.json")
    summary = store.read_json("summary.json")
    change(summary)
    store.write_json("summary.json", summary)
    status, out, err = harness(f"resume={folder}")
    assert status == 0 and "0 cells" in err and last_line(out)["strategies"]["ddtree"]["rounds"] == 6
    assert store.read_json("summary.json")["strategies"] == right["strategies"]


def test_a_config_that_cannot_be_read_is_refused(cut, monkeypatch):
    _, folder = cut

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UserError, match="config.yaml: cannot be read: Permission denied"):
        Store(folder).lock()


def rewritten(folder: Path, change) -> None:
    """environment.json as another version might have written it."""
    store = Store(folder)
    environment = store.read_json("environment.json")
    change(environment)
    store.write_json("environment.json", environment)


def test_nothing_else_may_be_given_with_resume(cut):
    harness, folder = cut
    for other in ("suite.limit=4", "strategy=mtp", "measure.repetitions=2", "+engine.differs=ddtree"):
        status, out, err = harness(f"resume={folder}", other)
        assert status == 2 and out == "" and len(err.splitlines()) == 1 and other in err and "resume" in err


def damage(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def begun_with(folder: Path, config: str) -> None:
    """As if the run had been killed before its environment was written."""
    (folder / "environment.json").unlink()
    (folder / "config.yaml").write_text(config)


@pytest.mark.parametrize(
    "harm, word",
    [
        (lambda f: damage(f / CELLS, b'"ttft_s": 0.1', b'"ttft_s": 0.2'), "checksum differs"),
        (lambda f: damage(f / CELLS, b"\n", b"\nrubbish\n"), "no checksum"),
        (lambda f: (f / CELLS).write_bytes((f / CELLS).read_bytes() * 2), "a second time"),
        (lambda f: (f / "config.yaml").unlink(), "config.yaml"),
        (lambda f: begun_with(f, "{a: ["), "damaged"),
        (lambda f: begun_with(f, "a: 1"), "needs the groups"),
        (lambda f: begun_with(f, "".join(f"{group}: 1\n" for group in GROUPS)), "needs the groups"),
        (lambda f: (f / "config.yaml").write_text("{a: ["), "is not the one that the run began with"),
        (lambda f: damage(f / "config.yaml", b"budget: 15", b"budget: 17"), "is not the one that the run began with"),
        (lambda f: damage(f / "environment.json", b'"sha256": "', b'"sha256": "0'), "checksum differs"),
        (lambda f: (f / "environment.json").write_text("{"), "damaged"),
        (lambda f: lines.append(f / CELLS, {**next(lines.read(f / CELLS)), "prompt": "x/1"}), "none of this run's"),
        (lambda f: lines.append(f / CELLS, {"prompt": "x/1"}), "no cell of this version"),
        (lambda f: shutil.rmtree(f), "config.yaml"),
        (lambda f: ((f / CELLS).unlink(), (f / CELLS).mkdir()), "cannot be read"),
        (lambda f: (f / CONTROL).write_text("rubbish\n"), "control.jsonl, line 1: has no checksum"),
        (lambda f: damage(f / SAMPLES, b'"at": ', b'"at": 1'), "checksum differs"),
        (lambda f: ((f / "table.md").unlink(), (f / "table.md").mkdir()), "cannot be written"),
        (lambda f: ((f / "plot.png").unlink(), (f / "plot.png").mkdir()), "cannot be written"),
        (lambda f: rewritten(f, lambda e: e.pop("engine")), "says nothing of the engine"),
        (lambda f: rewritten(f, lambda e: e.update(suite=3)), "says nothing of the suite"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(cut, harm, word):
    harness, folder = cut
    harm(folder)
    status, out, err = harness(f"resume={folder}")
    told = [line for line in err.splitlines() if line.startswith("harness: ")]
    assert status == 2 and out == "" and len(told) == 1 and word in told[0] and "Traceback" not in err, err
    assert " s left" not in err or word == "cannot be written", "damage is said before anything is measured"


def test_another_model_under_the_same_name_is_refused(cut):
    harness, folder = cut
    store = Store(folder)
    environment = store.read_json("environment.json")
    environment["engine"]["model_sha256"] = "other"
    store.write_json("environment.json", environment)
    status, _, err = harness(f"resume={folder}")
    assert status == 2 and "engine.model_sha256 was other" in err


def test_the_way_on_can_be_typed_whatever_the_folder_is_called():
    for name in ("results/runs/a-1.b", "it's 'so', {1} ${x} a=b"):
        word, *rest = reversed(shlex.split(command(Path(name))))
        assert list(reversed(rest)) == ["python", "-m", "harness"]
        (override,) = OverridesParser.create().parse_overrides([word])
        assert (override.key_or_group, override.value()) == ("resume", name)
    assert command(Path("results/runs/a-1.b")) == "python -m harness resume=results/runs/a-1.b"


def test_two_processes_do_not_write_into_one_folder(cut):
    _, folder = cut
    first, second = Store(folder), Store(folder)
    first.lock()
    with pytest.raises(UserError, match="another process"):
        second.lock()


def undisturbed_and_killed(tmp_path, *changes: str) -> tuple[Trial, Trial]:
    """The same small run of a made-up engine whole, and killed when 3, 11 and 25 cells are on disk."""
    options = ["engine._target_=fake_engine.FakeEngine", "model=local", "model.path=x",
               "suite.limit=16", "sampling.max_new_tokens=3", *changes]  # fmt: skip
    undisturbed = Trial(tmp_path / "whole", options)
    undisturbed.finish()
    killed = Trial(tmp_path / "killed", options)
    for cells in (3, 11, 25):
        killed.kill_when(lambda folder, cells=cells: (folder / CELLS).exists() and (folder / CELLS).read_bytes().count(b"\n") >= cells)
    killed.finish()
    return undisturbed, killed


def test_killed_three_times_every_cell_is_there_once(tmp_path):
    """kill -9 when some cells are on disk; benchmarks/kill_resume.py does it at random moments and more often."""
    undisturbed, killed = undisturbed_and_killed(tmp_path, "+engine.seconds=0.02")
    assert killed.kills == 3
    keys = Counter(cell.key for cell in killed.store().cells())
    assert keys.keys() == {c.key for c in undisturbed.store().cells()} and set(keys.values()) == {1}
    assert without_times(killed.summary()) == without_times(undisturbed.summary())
    assert {c.session for c in killed.store().cells()} == {0, 1, 2, 3}
