"""The speedup's estimate by hand, and its interval by simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.stats import speedup


def test_geometric_mean_over_prompts_not_over_cells():
    ratios = {"a": [[4.0, 4.0, 4.0]], "b": [[1.0]]}
    assert speedup(ratios).value == pytest.approx(2.0)


def test_turns_weigh_alike_whatever_their_repetitions():
    assert speedup({"a": [[9.0], [1.0, 1.0, 1.0]]}).value == pytest.approx(3.0)


def test_one_prompt_has_no_interval_and_no_prompt_has_no_speedup():
    assert speedup({"a": [[2.0, 2.1]]}).to_json() == [pytest.approx(2.0494, abs=1e-4), None, None]
    assert speedup({}) is None
    assert speedup({"a": [[]]}) is None


def test_the_seed_decides_the_interval():
    ratios = {str(i): [[1 + i / 10]] for i in range(8)}
    assert speedup(ratios, 1) == speedup(ratios, 1) != speedup(ratios, 2)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=12))
def test_the_interval_holds_the_estimate_and_stays_among_the_prompts(values):
    found = speedup({str(i): [[v]] for i, v in enumerate(values)})
    assert min(values) * 0.999 <= found.low <= found.value * 1.001
    assert found.value * 0.999 <= found.high <= max(values) * 1.001


def test_swapping_the_arms_inverts_the_interval():
    ratios = {str(i): [[1.0 + i]] for i in range(10)}
    swapped = {prompt: [[1 / turn[0]] for turn in turns] for prompt, turns in ratios.items()}
    there, back = speedup(ratios), speedup(swapped)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high, rel=0.05)


@pytest.mark.parametrize("prompts", [6, 32])
def test_about_95_of_100_intervals_hold_the_truth(prompts):
    """150 simulated runs: prompts differ by 20 %, repetitions by 5 %. Fewer than 130 hits has a chance below 1 in 1,000."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(150):
        truth = rng.normal(np.log(2), 0.2, size=prompts)
        found = speedup({str(i): [np.exp(rng.normal(t, 0.05, size=2))] for i, t in enumerate(truth)})
        hits += found.low <= 2 <= found.high
    assert 130 <= hits
