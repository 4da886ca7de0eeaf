"""``harness.load``: what a run left, as DataFrames."""

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_command import FAKE, SHORT, harness, last_line  # noqa: F401  (a fixture)

import harness as package
from harness.errors import UserError
from harness.store import CELLS, Store


@pytest.fixture
def folder(harness) -> Path:  # noqa: F811
    _, out, _ = harness(*FAKE, *SHORT, "measure.repetitions=2", "+engine.differs=ddtree", "sampling.seed=1")
    return Path(last_line(out)["run"])


def test_cells_and_rounds_agree_with_the_summary(folder):
    run = package.load(folder)
    assert len(run.cells) == 12 and run.config["suite"]["limit"] == 3 and run.environment["engine"] == {"fake": True}
    for name, figures in run.summary["strategies"].items():
        mine = run.cells[run.cells.strategy == name]
        rounds = run.rounds[run.rounds.strategy == name]
        assert len(rounds) == figures["rounds"] == mine["rounds"].sum()
        assert (mine.output_tokens - 1).sum() / mine.decode_s.sum() == pytest.approx(figures["decode_tokens_per_s"])
        assert 1 + rounds.accepted.mean() == pytest.approx(figures["acceptance_length_verified"])
        assert rounds.chunk_s.mean() == pytest.approx(figures["mean_round"]["chunk_s"])
    assert run.rounds.draft_s.isna().all() and run.rounds.host_s.isna().all(), "the made-up engine times one phase alone"
    assert len(run.samples) >= 1 and run.samples["at"].is_monotonic_increasing and run.control.empty


def test_a_run_presents_itself_in_a_line(folder):
    run = package.load(folder)
    strategies = ", ".join(run.cells.strategy.unique())
    assert repr(run) == f"Run({str(folder)!r}: 12 cells (0 failed) of {strategies}, 36 rounds, ended)"
    (folder / "summary.json").unlink()
    (folder / CELLS).unlink()
    assert repr(package.load(folder)) == f"Run({str(folder)!r}: 0 cells (0 failed) of no strategy, 0 rounds, not ended)"


def test_a_run_without_cells_and_one_cut_short(folder):
    data = (folder / CELLS).read_bytes()
    (folder / CELLS).write_bytes(data[:-30])
    (folder / "summary.json").unlink()
    run = package.load(folder)
    assert len(run.cells) == 11 and run.summary is None
    (folder / CELLS).unlink()
    run = package.load(folder)
    assert run.cells.empty and run.rounds.empty and {"prompt", "tokens", "tpot_s"} <= set(run.cells.columns)


def test_a_flipped_byte_is_refused_or_changes_nothing(folder):
    whole, generator = package.load(folder), random.Random(0)
    for name in ("cells.jsonl", "summary.json", "environment.json", "samples.jsonl", "config.yaml") * 40:
        data = (folder / name).read_bytes()
        altered = bytearray(data)
        altered[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        (folder / name).write_bytes(altered)
        try:
            run = package.load(folder)
        except UserError as error:
            assert "\n" not in str(error) and str(folder) in str(error)
        else:  # only a last line that lost its newline goes unnoticed: it reads as half-written
            assert name in ("cells.jsonl", "samples.jsonl") and run.cells.equals(whole.cells[: len(run.cells)])
        (folder / name).write_bytes(data)


def test_a_finished_run_that_lacks_cells_or_has_others_is_refused(folder):
    whole = (folder / CELLS).read_bytes()
    lines = whole.splitlines(keepends=True)
    for data in (b"".join(lines[:-1]), whole[:-9], b"", b"".join([*lines[:2], *lines[3:]])):
        (folder / CELLS).write_bytes(data)
        with pytest.raises(UserError, match=r"cells of ddtree, and summary.json was made of 6 cells of baseline|holds no cell"):
            package.load(folder)
    (folder / CELLS).unlink()
    with pytest.raises(UserError, match="holds no cell, and summary.json was made of"):
        package.load(folder)


def test_cells_of_other_prompts_are_refused(folder):
    store, cells = Store(folder), list(Store(folder).cells())
    (folder / CELLS).unlink()
    for cell in cells:
        store.append(replace(cell, prompt_sha256="other"))
    with pytest.raises(UserError, match="was asked other prompts"):
        package.load(folder)


def test_a_summary_of_another_version_is_refused(folder):
    store = Store(folder)
    for change in ({"strategies": {"ddtree": 3}}, {"strategies": None}):
        store.write_json("summary.json", {**store.read_json("summary.json"), **change})
        with pytest.raises(UserError, match="no summary of this version; resume="):
            package.load(folder)


def test_a_config_that_cannot_be_read_is_refused(folder, monkeypatch):
    def read_bytes(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(UserError, match="config.yaml: cannot be read: Permission denied"):
        package.load(folder)


def test_a_folder_that_may_not_be_looked_into_is_refused(folder, monkeypatch):
    def stat(path, **_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        package.load(folder)


def test_folders_that_are_none(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UserError, match="no run's folder"):
            package.load(folder)


def test_importing_the_package_is_light():
    code = "import sys, harness; assert callable(harness.load); print(*(m for m in ('pandas', 'numpy', 'torch') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(package.__file__).parent.parent)
    assert done.returncode == 0 and done.stdout.strip() == "", done.stdout + done.stderr
