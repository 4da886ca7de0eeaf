"""Estimates by hand, and intervals by simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.stats import mean_over_requests, passes_error, pooled, speedup, speedup_change

ratio = st.floats(0.1, 10)
runs = st.dictionaries(st.text(max_size=3), st.lists(st.lists(ratio, min_size=1, max_size=3), min_size=1, max_size=2))
few = settings(max_examples=30, deadline=None)


def test_geometric_mean_over_prompts_not_over_cells():
    ratios = {"a": [[4.0, 4.0, 4.0]], "b": [[1.0]]}
    assert speedup(ratios).value == pytest.approx(2.0)


def test_turns_weigh_alike_whatever_their_repetitions():
    assert speedup({"a": [[9.0], [1.0, 1.0, 1.0]]}).value == pytest.approx(3.0)


def test_one_prompt_has_no_interval_and_no_prompt_has_no_speedup():
    assert speedup({"a": [[2.0, 2.1]]}).to_json() == [pytest.approx(2.0494, abs=1e-4), None, None]
    assert speedup({}) is speedup({"a": [[]]}) is pooled({}) is mean_over_requests({}) is None
    assert pooled({"a": (6, 3)}).to_json() == [pytest.approx(2), None, None]


def test_the_seed_decides_the_interval():
    ratios = {str(i): [[1 + i / 10]] for i in range(8)}
    assert speedup(ratios, 1) == speedup(ratios, 1) != speedup(ratios, 2)


@few
@given(st.lists(ratio, min_size=6, max_size=12))
def test_the_interval_holds_the_estimate_and_stays_among_the_prompts(values):
    found = speedup({str(i): [[v]] for i, v in enumerate(values)})
    assert min(values) * 0.999 <= found.low <= found.value * 1.001
    assert found.value * 0.999 <= found.high <= max(values) * 1.001


def test_fewer_than_six_prompts_get_students_interval():
    """By hand: logs 0 and 1 have standard error 0.5, and t of one degree of freedom is 12.706 at 97.5 %."""
    found = speedup({"a": [[1.0]], "b": [[np.e]]})
    assert np.log(found.high) == pytest.approx(0.5 + 12.706 * 0.5, rel=0.03)


@few
@given(runs, st.floats(0.5, 2))
def test_scale_turns_into_the_value_and_the_interval(ratios, factor):
    scaled = {p: [[factor * r for r in turn] for turn in turns] for p, turns in ratios.items()}
    plain, times = speedup(ratios), speedup(scaled)
    if plain is None:
        return
    for one, other in zip(plain.to_json(), times.to_json()):
        assert (one is None) == (other is None)
        assert one is None or other == pytest.approx(factor * one, rel=1e-6)
    assert speedup_change(scaled, ratios).value == pytest.approx(factor)


@few
@given(runs, st.randoms())
def test_the_order_of_prompts_turns_and_repetitions_changes_nothing(ratios, random):
    shuffled = {p: [random.sample(t, len(t)) for t in turns] for p, turns in random.sample(list(ratios.items()), len(ratios))}
    one, other = speedup(ratios), speedup(shuffled)
    assert one == other or one.to_json() == pytest.approx(other.to_json())


@few
@given(st.lists(st.tuples(ratio, ratio), min_size=2, max_size=12))
def test_swapping_the_sides_negates_the_log_ratio_and_its_interval(values):
    ours, theirs = ({str(i): [[v[side]]] for i, v in enumerate(values)} for side in (0, 1))
    there, back = speedup_change(ours, theirs), speedup_change(theirs, ours)
    assert there.value == pytest.approx(1 / back.value)
    # A bootstrap's two quantiles come from one finite sample: swapped ends agree exactly, not within Monte Carlo error.
    assert [there.low, there.high] == pytest.approx([1 / back.high, 1 / back.low], rel=1e-6)


def test_what_differs_between_prompts_cancels_between_two_runs():
    ours, theirs = {}, {}
    for i in range(10):
        ours[str(i)], theirs[str(i)] = [[0.9 * (1 + i)]], [[1.0 + i]]
    found = speedup_change(ours, theirs)
    assert found.to_json() == pytest.approx([0.9] * 3)
    assert speedup_change(ours, {"other": [[1.0]]}) is None


def test_passes_error_by_hand():
    """Passes of the first run lie at -0.1, 0, 0.1 about their mean and those of the second at 0: s = sqrt(0.02 / 3)."""
    ours = {"a": {0: 0.9, 1: 1.0, 2: 1.1}, "b": {0: 4.9, 1: 5.0, 2: 5.1}}
    theirs = {"a": {0: 1.0, 1: 1.0}}
    assert passes_error([ours, theirs]) == pytest.approx(3.182446 * np.sqrt(0.02 / 3 * (1 / 3 + 1 / 2)), rel=1e-6)
    assert passes_error([theirs, {"a": {0: 1.0}}]) == 0
    assert passes_error([{"a": {0: 1.0}}, {"a": {0: 2.0}}]) is None


def test_pooled_sums_before_it_divides():
    tokens_and_rounds = {"a": (10, 10), "b": (90, 10), "left out": (0, 0)}
    assert pooled(tokens_and_rounds).value == pytest.approx(5)
    speeds = {"a": (10, 1, 10, 2), "b": (10, 4, 10, 8)}
    assert pooled(speeds, (1, -1, -1, 1)).to_json() == pytest.approx([2, 2, 2])


def test_mean_over_requests_weighs_prompts_alike():
    assert mean_over_requests({"a": [[1, 1, 1], [3]], "b": [[6]]}).value == pytest.approx(4)


@pytest.mark.parametrize("prompts", [2, 5, 6, 32])
@pytest.mark.parametrize("what", ["speedup", "change", "pooled"])
def test_about_95_of_100_intervals_hold_the_truth(prompts, what):
    """200 simulated runs: prompts differ by 20 %, repetitions by 5 %. An interval that holds the truth in 95 % does so in
    fewer than 178 or more than 199 with a chance below 1 in 1,000; the percentile interval of six prompts promises 93 %."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        truth = rng.normal(np.log(2), 0.2, size=prompts)
        one, other = ({str(i): [np.exp(rng.normal(t, 0.05, size=3))] for i, t in enumerate(truth)} for _ in "ab")
        if what == "speedup":
            found, true = speedup(one), 2
        elif what == "change":
            found, true = speedup_change(one, other), 1
        else:
            sums = {p: (np.exp(rng.normal(np.log(2), 0.2)) * n, n) for p, n in zip(one, rng.integers(5, 15, prompts))}
            found, true = pooled(sums), 2 * np.exp(0.02)
        hits += found.low <= true <= found.high
    assert (176 if prompts == 6 else 178) <= hits <= 199
