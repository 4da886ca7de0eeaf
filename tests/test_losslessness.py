"""Where outputs part from the baseline's, how near a tie that was, and whether the baseline repeats itself."""

import math

import pytest
from fake_engine import FakeEngine, fake_decoded
from hypothesis import given
from hypothesis import strategies as st

from harness.control import CONTROLS, examine
from harness.losslessness import Setting, compare, compare_repetitions, first_difference, losslessness
from harness.measuring import Schedule, measure
from harness.records import Sampling
from harness.store import CONTROL, Cell, Key, Store
from harness.suites import Row

ROWS = [Row(id=f"t/{i}", category="chat", turns=("hello" + "!" * i, "and then?")[: 1 + i % 2]) for i in range(20)]
ARMS = ["baseline", "ddtree"]


class EngineWithMargins(FakeEngine):
    def margin(self, prompt_ids, prefix):
        return sum(prompt_ids) + len(prefix) / 10


def schedule(**changes) -> Schedule:
    defaults = dict(rows=ROWS, strategies=ARMS, sampling=Sampling(max_new_tokens=6), repetitions=1, seed=0)
    return Schedule(**{**defaults, **changes})


def setting(**changes) -> Setting:
    return Setting(**{**dict(baseline="baseline", strategies=ARMS, dtype="bfloat16", greedy=True, repetitions=1), **changes})


def cell(strategy: str, tokens, prompt="a", repetition=0, asked="same") -> Cell:
    return Cell(Key(prompt, 0, strategy, repetition), "chat", 0, 1, asked, fake_decoded(tokens))


def measured(engine, tmp_path, **changes) -> Store:
    store = Store(tmp_path)
    for cells in measure(engine, schedule(**changes)):
        store.append(*cells)
    return store


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_first_difference_is_the_end_of_the_common_prefix(a, b):
    index = first_difference(a, b)
    if a == b:
        assert index is None
    else:
        assert a[:index] == b[:index] and a[index : index + 1] != b[index : index + 1]


def test_outputs_to_other_prompts_are_counted_and_not_compared():
    mine = [cell("x", [1, 2]), cell("x", [1, 3], "b"), cell("x", [5, 5], "c", asked="own history")]
    theirs = [cell("y", [1, 2]), cell("y", [1, 2], "b"), cell("y", [1, 2], "c", asked="another")]
    found = compare(mine, theirs)
    assert (found.compared, found.other_prompts, found.identical) == (2, 1, 0.5)
    assert [(d.key.prompt, d.index) for d in found.divergences] == [("b", 1)]


def test_margins_of_the_baselines_own_prompts_and_of_the_common_prefix(tmp_path):
    engine = EngineWithMargins(None, {}, differs="ddtree")
    store = measured(engine, tmp_path)
    margins = examine(engine, schedule(), store, setting())
    cells = {c.key: c for c in store.cells()}
    found = losslessness(list(cells.values()), list(store.cells(CONTROL)), setting(), margins).strategies["ddtree"]
    # The last of six tokens differs; second turns come after different answers and so have other prompts.
    assert {d.index for d in found.divergences} == {5} and found.compared == 20 and found.other_prompts == 10
    for divergence in found.divergences:
        questions = sum(1 + byte for byte in ROWS[int(divergence.key.prompt[2:])].turns[0].encode())
        assert divergence.margin == pytest.approx(questions + 0.5)


def test_the_control_decodes_the_baseline_again_once_and_outside_the_cells(tmp_path):
    engine = FakeEngine(None, {}, differs="ddtree")
    store = measured(engine, tmp_path)
    before = len(list(store.cells()))
    assert examine(engine, schedule(), store, setting()) == {}, "an engine without margins gives none"
    control = list(store.cells(CONTROL))
    assert len(control) == CONTROLS and {c.key.strategy for c in control} == {"baseline"}
    examine(engine, schedule(), store, setting())
    assert list(store.cells(CONTROL)) == control and len(list(store.cells())) == before
    found = losslessness(list(store.cells()), control, setting())
    assert (found.control.compared, found.control.identical) == (CONTROLS, 1)
    assert any("the baseline equals itself in 8 of 8" in line for line in found.lines())


def test_second_turns_are_asked_again_with_the_baselines_answers(tmp_path):
    engine = EngineWithMargins(None, {}, differs="ddtree")
    store = measured(engine, tmp_path, history_of="baseline", rows=ROWS[1:2])
    margins = examine(engine, schedule(rows=ROWS[1:2]), store, setting())
    assert {key.turn for key in margins} == {0, 1}


def test_greedy_repetitions_are_the_control_and_sampled_ones_are_not(tmp_path):
    cells = [cell("baseline", [1, 2]), cell("baseline", [1, 3], repetition=1), cell("ddtree", [1, 2])]
    assert compare_repetitions(cells[:2]).divergences[0].index == 1
    assert losslessness(cells, [], setting(repetitions=2)).control.identical == 0
    assert losslessness(cells, [], setting(repetitions=2, greedy=False)).control is None


def test_nothing_is_decoded_again_when_nothing_differs(tmp_path):
    engine = FakeEngine(None, {})
    store = measured(engine, tmp_path)
    engine.seen.clear()
    assert examine(engine, schedule(), store, setting()) == {} and not engine.seen
    assert losslessness(list(store.cells()), [], setting()).lines() == ["ddtree: all 30 outputs equal the baseline's"]


def test_a_difference_in_greedy_fp32_is_loud_and_near_ties_in_bf16_are_told():
    cells = [cell("baseline", [1, 2, 3]), cell("ddtree", [1, 2, 4])]
    margins = {cells[1].key: 0.0625}
    near = losslessness(cells, [], setting(), margins).lines()
    assert len(near) == 1 and "0 of 1 outputs" in near[0] and "token 2" in near[0] and "0.0625 apart (median; bfloat16)" in near[0]
    loud = losslessness(cells, [], setting(dtype="float32"), margins)
    assert loud.broken() == ["ddtree"] and loud.lines()[0].startswith("NOT LOSSLESS: ddtree")
    assert losslessness(cells, [], setting(dtype="float32", greedy=False)).broken() == []


def test_the_torch_engines_margin_is_the_difference_of_its_two_best_logits(tiny_models):
    from harness.engines.torch import TorchEngine

    model = {"path": str(tiny_models["qwen3"].folder), "dtype": "float32", "name": "tiny"}
    engine = TorchEngine(model, {"baseline": {"_target_": "strategies.baseline.build", "name": "baseline"}}, device="cpu")
    import torch

    with torch.no_grad():
        logits = tiny_models["qwen3"].model(torch.tensor([[5, 6, 7, 8, 9]])).logits[0, -1]
    first, second = logits.topk(2).values.tolist()
    assert math.isclose(engine.margin((5, 6, 7), (8, 9)), first - second, rel_tol=1e-3)
    settings = engine.settings()
    assert settings["drafters"] == {"baseline": None} and settings["weight_bytes"] > 0 < settings["copy_bytes_per_s"]
    assert settings["cache_bytes_per_token"] == 2 * 2 * 2 * 8 * 4
