"""``experiment=batch_sweep``: a job for each batch, one table of them, and the batch at which drafting stops paying."""

import math

import pytest
from test_sweep import call

from harness.report import batches
from harness.report.subject import read
from harness.store import Store
from harness.sweep.store import Sweep

SMALL = ["engine._target_=fake_engine.FakeEngine", "+engine.crowding=0.25", "model=local", "model.path=x",
         "suite.limit=16", "sampling.max_new_tokens=9"]  # fmt: skip
BATCHES = [1, 2, 4, 8, 16]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    called = call(folder, *SMALL, "experiment=batch_sweep")
    assert called.status == 0, called.err
    return folder / called.last["sweep"], called


def test_every_batch_is_a_job_of_first_turns(swept):
    folder, called = swept
    assert [job["overrides"] for job in called.last["jobs"]] == [[f"measure.batch={n}"] for n in BATCHES]
    for _, run in Sweep.open(folder).done():
        cells = list(Store(run).cells())
        assert {cell.key.turn for cell in cells} == {0} and len(cells) == 32
        assert {cell.batch_size for cell in cells} in ({None}, {2}, {4}, {8}, {16})


def test_the_batch_at_which_the_aggregate_speedup_crosses_1_is_told(swept):
    """With n requests at once a round of two tokens takes 1 + (n - 1) / 4 of one of the baseline's."""
    folder, called = swept
    (found,) = called.last["crossings"]
    assert (found["strategy"], found["suite"], found["batches"]) == ("ddtree", "quick", BATCHES)
    assert found["speedups"] == pytest.approx([2, 8 / 5, 8 / 7, 8 / 11, 8 / 19])
    assert found["crosses_1_at"] == [pytest.approx(4 * 2 ** (math.log(8 / 7) / math.log(11 / 7)))]
    line = "ddtree (local, quick): the aggregate speedup crosses 1 at a batch of 4.9 (between measured ones by its logarithm)"
    for text in (called.out, (folder / "table.md").read_text()):
        assert f"{line}: 2.00× at 1, 1.60× at 2, 1.14× at 4, 0.73× at 8, 0.42× at 16" in text
        assert "In batches of requests" in text and "16 of 1" in text and "4 of 4" in text and "1 of 16" in text
    assert batches.sentences(read([str(folder)]))[0].startswith(line)
    assert (folder / "batches.png").read_bytes().startswith(b"\x89PNG") and not (folder / "budgets.png").exists()
