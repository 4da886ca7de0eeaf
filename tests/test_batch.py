"""Several requests as one batch: which go together, what each cell says of it, failures, resumption, control, refusals."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine, measure
from test_command import FAKE, SHORT, harness, last_line  # noqa: F401  (a fixture)
from test_resume import ROWS, same, undisturbed_and_killed

import harness as package
from benchmarks.kill_resume import without_times
from harness import measuring
from harness.decoding import decode_together
from harness.measuring import WARMUP_PROMPTS, Schedule, warm_up
from harness.records import Request, Sampling
from harness.store import CELLS, CONTROL, Cell, Key, Store

# Conversations of 1, 2, 3, 1 and 2 turns, three at a time: batches of 3, 2 and 1, then of 2 and 1.
SCHEDULE = Schedule(ROWS, ("baseline", "mtp", "ddtree"), Sampling(max_new_tokens=4), repetitions=2, seed=0, batch=3)
SIZES = {(0, 0): 3, (0, 1): 2, (0, 2): 1, (1, 0): 2, (1, 1): 1}


def engine(**options) -> FakeEngine:
    return FakeEngine(None, {name: {} for name in SCHEDULE.strategies}, **options)


def test_every_cell_once_in_its_batch():
    fake = engine()
    batches = list(measuring.measure(fake, SCHEDULE))
    cells = [cell for batch in batches for cell in batch]
    assert [cell.key for cell in cells] == list(SCHEDULE.keys()) and len(cells) == SCHEDULE.cells == 9 * 3 * 2
    assert [cell.order for cell in cells] == list(range(len(cells)))
    assert {(cell.batch, cell.key.turn): cell.batch_size for cell in cells} == SIZES
    assert [[cell.prompt_tokens for cell in batch] for batch in batches] == [[len(r.prompt_ids) for r in asked] for _, asked in fake.batches]
    assert not fake.seen and {request.alone for _, asked in fake.batches for request in asked} == {False}
    assert [cell.decoded.ttft_s for cell in cells] == pytest.approx([0.1 * cell.batch_size for cell in cells])


def test_strategies_are_interleaved_by_batch_in_an_order_that_the_seed_decides():
    def order(seed):
        fake = engine()
        measure(fake, replace(SCHEDULE, seed=seed))
        return [strategy for strategy, _ in fake.batches]

    assert order(1) == order(1) != order(2)
    for start in range(0, len(order(1)), 3):
        assert set(order(1)[start : start + 3]) == set(SCHEDULE.strategies)


def test_batches_answer_as_requests_do_alone():
    for history_of in (None, "baseline"):
        together, alone = (measure(engine(differs="mtp"), replace(SCHEDULE, batch=batch, history_of=history_of)) for batch in (3, 1))
        told = {cell.key: (cell.prompt_sha256, cell.text, cell.decoded.output) for cell in alone}
        assert {cell.key: (cell.prompt_sha256, cell.text, cell.decoded.output) for cell in together} == told
        assert {cell.batch for cell in alone} == {cell.batch_size for cell in alone} == {None}


def test_later_turns_sample_with_the_repetitions_seed():
    fake = engine()
    measure(fake, SCHEDULE)
    assert [{request.sampling.seed for request in asked} for _, asked in fake.batches] == [{0}] * 15 + [{1}] * 15


def test_warm_up_has_a_batch_of_every_size_that_comes():
    fake = engine()
    warm_up(fake, SCHEDULE, prompts=2)
    assert Counter((name, len(asked)) for name, asked in fake.batches) == {(n, s): 2 for n in SCHEDULE.strategies for s in (3, 2, 1)}
    known = {tuple(fake.render([{"content": words}])) for words in WARMUP_PROMPTS}
    assert {request.prompt_ids for _, asked in fake.batches for request in asked} <= known and not fake.seen


# failures


def test_the_failure_of_a_batch_is_that_of_each_of_its_cells():
    cells = measure(engine(broken="mtp"), SCHEDULE)
    kinds = Counter((cell.key.turn, cell.failure.kind) for cell in cells if cell.key.strategy == "mtp")
    assert kinds == {(0, "RuntimeError"): 10, (1, "TurnBefore"): 6, (2, "TurnBefore"): 2}
    assert all(cell.decoded for cell in cells if cell.key.strategy != "mtp")
    assert {cell.batch_size for cell in cells if cell.failure and cell.failure.kind == "TurnBefore"} == {None}


def test_a_prompt_without_room_fails_alone():
    rows = [replace(row, turns=(f"{'long ' * (i == 1)}hello",)) for i, row in enumerate(ROWS)]
    cells = measure(engine(context_length=9), replace(SCHEDULE, rows=rows))
    told = {cell.key.prompt: (cell.batch, cell.batch_size, cell.failure and cell.failure.message[:41]) for cell in cells}
    assert told.pop("t/1") == (0, None, "prompt of 10 tokens leaves no room in a c")
    assert told == {"t/0": (0, 2, None), "t/2": (0, 2, None), "t/3": (1, 2, None), "t/4": (1, 2, None)}


def test_an_engine_that_gives_too_few_answers_or_none_has_failed():
    blank = [Cell(Key(name, 0, "ddtree", 0), "chat", 0, batch=0) for name in "ab"]
    requests = [lambda: Request((1,), (), Sampling(max_new_tokens=2))] * 2
    for wrong, words in (([], "gave 0 answers to 2 requests"), (None, "TypeError"), ([None, None], "AttributeError")):
        fake = engine()
        fake.decode_batch = lambda strategy, requests, wrong=wrong: wrong
        cells = decode_together(fake, blank, requests)
        assert all(words in f"{cell.failure.kind}: {cell.failure.message}" and cell.batch_size == 2 for cell in cells)
    assert decode_together(engine(), [], []) == []


def test_peaks_are_the_batchs():
    fake = engine()
    fake.peaks = lambda: (len(fake.batches), 7)
    for cells in measuring.measure(fake, SCHEDULE):
        assert {(cell.host_peak_bytes, cell.device_peak_bytes) for cell in cells} == {(len(fake.batches), 7)}


# resumption


@pytest.mark.parametrize("kept", range(0, SCHEDULE.cells, 4))
def test_a_batch_stored_in_part_is_decoded_again_whole_and_gives_what_is_missing(kept):
    whole = measure(engine(differs="ddtree"), SCHEDULE)
    finished = {cell.key: cell for cell in whole[:kept]}
    fake = engine(differs="ddtree")
    rest = measure(fake, SCHEDULE, finished, session=1)
    assert same([*whole[:kept], *rest]) == same(whole) and {cell.session for cell in rest} == {1}
    assert [(c.batch, c.batch_size) for c in rest] == [(c.batch, c.batch_size) for c in whole[kept:]]
    assert sum(len(asked) for _, asked in fake.batches) - len(rest) == _behind_the_cut(whole, kept)


def _behind_the_cut(whole, kept) -> int:
    """Stored cells of the batch that the cut goes through: they are decoded again and not stored again."""
    place = lambda cell: (cell.batch, cell.key.turn, cell.key.strategy, cell.key.repetition)  # noqa: E731
    return sum(place(cell) == place(whole[kept]) for cell in whole[:kept])


BATCHED = [*FAKE, "suite.limit=6", "suite.max_turns=1", "sampling.max_new_tokens=5", "measure.batch=3"]


def test_a_run_in_batches_has_its_figures_table_and_folder(harness):  # noqa: F811
    status, out, err = harness(*BATCHED, "+engine.crowding=0.25", "measure.repetitions=2")
    assert status == 0 and "24/24 cells" in err, err
    folder = Path(last_line(out)["run"])
    found = package.load(folder)
    ddtree = found.summary["strategies"]["ddtree"]
    # Three requests of four tokens behind the first: two rounds of 15 ms against four of 10 ms.
    assert ddtree["aggregate_tokens_per_s"] == pytest.approx(12 / 0.03) and ddtree["aggregate_speedup"] == pytest.approx([4 / 3] * 3)
    assert ddtree["decode_tokens_per_s"] == pytest.approx(4 / 0.03) and ddtree["bandwidth_use"] is None
    assert (ddtree["batch_size"], ddtree["batches"], ddtree["batches_left_out"]) == (3, 4, 0)
    assert last_line(out)["strategies"]["ddtree"]["aggregate_speedup"] == pytest.approx([4 / 3] * 3)
    assert found.summary["order"] == "a batch of 3 requests at a time, strategies interleaved"
    assert set(found.cells["batch"]) == {0, 1} and set(found.cells["batch_size"]) == {3}
    for text in (out, (folder / "table.md").read_text()):
        assert "In batches: a batch of 3 requests at a time" in text and "aggregate speedup" in text and "1.33×" in text
    _, out, _ = harness(*FAKE, *SHORT)
    assert "aggregate" not in out.rpartition("\n{")[0] and "aggregate" not in Path(last_line(out)["run"], "table.md").read_text()


def test_too_few_prompts_for_a_batch_is_told(harness):  # noqa: F811
    _, out, _ = harness(*FAKE, *SHORT, "measure.batch=8")
    assert "measure.batch=8: the suite has too few prompts for it; the largest batches held 3" in out


@pytest.mark.parametrize("call, stored", [(8, 2), (7, 1), (5, 0)])
def test_an_interrupted_run_keeps_whole_batches_and_is_finished_with_every_cell_once(harness, monkeypatch, call, stored):  # noqa: F811
    """Calls 1 to 4 are the warm-up: suite.limit=5 makes batches of 3 and 2."""
    few = [*BATCHED, "suite.limit=5"]
    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "interrupted_call", call)
        status, out, _ = harness(*few)
    folder = Path(last_line(out)["run"])
    cells = list(Store(folder).cells())
    assert status == 130 and len({(cell.batch, cell.key.strategy) for cell in cells}) == call - 5
    assert Counter((cell.batch, cell.key.strategy) for cell in cells) == {(c.batch, c.key.strategy): c.batch_size for c in cells}
    status, out, _ = harness(f"resume={folder}")
    again = Store(folder).read_json("summary.json")
    _, undisturbed, _ = harness(*few)
    other = Store(Path(last_line(undisturbed)["run"]))
    assert status == 0 and without_times(again) == without_times(other.read_json("summary.json"))
    assert same(Store(folder).cells()) == same(other.cells())


def test_a_kill_that_left_a_part_of_a_batch(harness):  # noqa: F811
    _, out, _ = harness(*BATCHED)
    whole = Path(last_line(out)["run"])
    lines = (whole / CELLS).read_bytes().splitlines(keepends=True)
    for kept, cut in ((4, 0), (5, 20), (3, 9)):
        folder = Path(shutil.copytree(whole, f"cut{kept}"))
        (folder / CELLS).write_bytes(b"".join(lines[:kept]) + lines[kept][:cut])
        (folder / "summary.json").unlink()
        status, out, _ = harness(f"resume={folder}")
        cells, figures = list(Store(folder).cells()), Store(folder).read_json("summary.json")["strategies"]
        assert status == 0 and same(cells) == same(Store(whole).cells())
        torn = {cells[kept].key.strategy} if kept % 3 else set()
        assert {name for name, found in figures.items() if found["batches_left_out"]} == torn
        assert {name for name, found in figures.items() if found["batches"] == 2} == figures.keys() - torn


def test_killed_three_times_every_cell_is_there_once(tmp_path):
    undisturbed, killed = undisturbed_and_killed(tmp_path, "+engine.seconds=0.05", "measure.batch=4")
    assert killed.kills == 3 and same(killed.store().cells()) == same(undisturbed.store().cells())


# control, refusals


def test_the_control_is_decoded_in_the_batch_it_was_in(harness, monkeypatch):  # noqa: F811
    built = []
    init = FakeEngine.__init__
    monkeypatch.setattr(FakeEngine, "__init__", lambda self, *a, **k: (init(self, *a, **k), built.append(self))[0])
    monkeypatch.setattr(FakeEngine, "decode", None)
    _, out, _ = harness(*BATCHED, "+engine.differs=ddtree", "measure.warmup=0")
    store = Store(Path(last_line(out)["run"]))
    measured = [(name, [r.prompt_ids for r in asked]) for name, asked in built[0].batches]
    assert [asked for name, asked in measured[4:]] == [asked for name, asked in measured[:4] if name == "baseline"]
    control = list(store.cells(CONTROL))
    assert {cell.key for cell in control} == {cell.key for cell in store.cells() if cell.key.strategy == "baseline"}
    assert {cell.batch_size for cell in control} == {3} and [cell.order for cell in control] == list(range(6))
    assert "the baseline equals itself in 6 of 6 outputs" in out


class Alone:
    """An engine that takes no batch, which can be seen before it loads anything."""

    def __init__(self, model, strategies, **options) -> None:
        raise AssertionError("it was loaded")


def build_alone(model, strategies, **options):
    """An engine of which that shows only when it is there."""
    return object()


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([f"engine._target_={__name__}.Alone", "engine.name=mine"], "engine=mine: takes no batch of requests; for measure.batch=4 take engine=torch"),
        ([f"engine._target_={__name__}.build_alone"], "engine=torch: takes no batch of requests; for measure.batch=4 take engine=torch"),
        (["engine=vllm", "engine._target_=harness.engines.vllm.VLLMEngine"], "engine=vllm: takes no batch of requests; for measure.batch=4 take engine=torch"),
        (["engine=openai", "engine._target_=harness.engines.openai.OpenAIEngine"], "for measure.batch=4 take engine=torch, or with this one measure.concurrency=4"),
        (["measure.concurrency=2"], "measure.batch=4 and measure.concurrency=2: under load requests come one by one; take one of the two away"),
        (["measure.rate=0.5"], "measure.batch=4 and measure.rate=0.5: under load"),
        (["measure.batch=0"], "measure.batch=0: must be 1 (each request alone) or more"),
        (["measure.batch=null"], "measure.batch=null: must be a whole number"),
        (["measure.batch=1.5"], "measure.batch=1.5: must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(harness, tmp_path, overrides, line):  # noqa: F811
    status, out, err = harness(*FAKE, *SHORT, "measure.batch=4", *overrides)
    assert status == 2 and out == "" and line in err and len(err.splitlines()) == 1, err
    assert list(tmp_path.iterdir()) == []


def test_a_batch_of_one_and_a_load_go_together(harness):  # noqa: F811
    status, _, err = harness("engine._target_=test_under_load.BusyEngine", *FAKE[1:], *SHORT, "measure.batch=1", "measure.concurrency=2")
    assert status == 0, err
