"""Variance components are found again in data made from them, and the gate errs as rarely as it promises."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gate_results import fail, result

from harness.errors import UserError
from harness.gate.noise import Noise, estimate, log_speedups, rates, rates_by_repetitions, required_repetitions, simulate
from harness.gate.reading import save

ROOT = Path(__file__).parent.parent
SCRIPT = str(ROOT / "benchmarks" / "gate_error_rates.py")


def test_components_are_found_again():
    """200 prompts, 40 passes: the relative standard error of each component is below 12 %."""
    true = Noise(prompts=0.3, passes=0.05, cells=0.1)
    logs = simulate(true, 200, 40, np.random.default_rng(1))[0]
    found = estimate(logs)
    assert found.to_json() == pytest.approx(true.to_json(), rel=0.3)
    assert np.std(found.residuals) == pytest.approx(1)


def test_no_noise_is_found_in_repetitions_that_agree():
    found = estimate(np.array([[0.1, 0.1], [0.5, 0.5], [0.9, 0.9]]))
    assert (found.passes, found.cells) == pytest.approx((0, 0), abs=1e-9) and found.prompts == pytest.approx(0.4)


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (0, 0)])
def test_too_little_to_estimate_from_is_refused(shape):
    with pytest.raises(UserError, match="needs 2 of each"):
        estimate(np.zeros(shape))


def test_log_speedups_of_a_result():
    run = result([2.0, 4.0, 8.0], repetitions=3, turns=2)
    assert log_speedups(run, "ddtree") == pytest.approx(np.log([[2.0] * 3, [4.0] * 3, [8.0] * 3]))
    assert log_speedups(fail(run, "ddtree", "p01"), "ddtree").shape == (2, 3)
    first = next(a for a in run.answers if a.strategy == "ddtree")
    half = replace(first, outcomes=(*first.outcomes[:2], None), failed=1)
    kept = replace(run, answers=tuple(half if a is first else a for a in run.answers))
    assert log_speedups(kept, "ddtree").shape == (2, 3), "a prompt without every repetition of every turn is left out"


def test_two_runs_share_their_prompts_and_nothing_else():
    one, other = simulate(Noise(1.0, 0.0, 0.0), 5, 2, np.random.default_rng(0))
    assert one == pytest.approx(other)
    one, other = simulate(Noise(0.0, 0.1, 0.1), 5, 2, np.random.default_rng(0))
    assert not np.allclose(one, other)


def test_error_rates_at_a_known_noise():
    """Standard error of the change is 0.06 * sqrt(2 / (32 * 4)) = 0.75 %; the bound of 5 % lies 7 of them from equal code and
    from a loss of 10 %: both promises hold. With a quarter of the prompts and half the repetitions the second does not."""
    noise = Noise(prompts=0.3, passes=0.0, cells=0.06)
    same, worse = rates(noise, 32, 4, 0.0, 0.05, 300), rates(noise, 32, 4, 0.1, 0.05, 300)
    assert same["regressed"] == 0 and same["pass"] > 0.95 and worse["regressed"] > 0.95 and worse["pass"] == 0
    assert rates(noise, 8, 2, 0.1, 0.05, 300)["regressed"] < 0.9
    at_the_tolerance = rates(noise, 32, 4, 0.05, 0.05, 300)
    wrong = max(at_the_tolerance["regressed"], at_the_tolerance["pass"])
    assert wrong <= 0.035, "each at most 1 % of 300: 11 has a chance below 1 in 1,000"


@pytest.mark.parametrize("passes", [0.0, 0.1])
def test_equal_code_on_a_very_noisy_machine_is_inconclusive_not_regressed(passes):
    """Where the tolerance is small against the noise nothing but the 98 % protects: at most 1 % of 300."""
    found = rates(Noise(0.3, passes, 0.3), 16, 2, 0.0, 0.05, 300)
    assert found["regressed"] <= 0.035 and found["inconclusive"] > 0.5


def test_residuals_with_a_long_tail_are_drawn_from():
    residuals = tuple([-0.1] * 99 + [9.9])
    found = simulate(Noise(0.0, 0.0, 1.0, residuals), 100, 10, np.random.default_rng(0))
    assert set(np.round(found.ravel(), 6)) == {-0.1, 9.9}


def test_required_repetitions_are_the_fewest_that_keep_the_promise_from_there_on():
    rows = [{"repetitions": r, "kept": k} for r, k in ((1, True), (2, False), (3, True), (4, True))]
    assert required_repetitions(rows) == 3
    assert required_repetitions(rows[:2]) is None
    measured = rates_by_repetitions(Noise(0.3, 0.0, 0.05), 16, 0.05, [1, 6], 100)
    assert [row["kept"] for row in measured] == [False, True], "one repetition has no interval, six a standard error of 0.7 %"


def test_the_documented_rates_are_the_stored_ones():
    table, docs = runpy.run_path(SCRIPT)["table"], (ROOT / "docs" / "gate.md").read_text()
    stored = sorted((ROOT / "results" / "gate").glob("*.json"))
    assert stored
    for file in stored:
        assert file.name in docs and table(json.loads(file.read_text())) in docs


@pytest.mark.parametrize(("repetitions", "status"), [(6, 0), (1, 1)])
def test_the_script_writes_rates_and_compares_real_runs(repetitions, status, tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    for name in ("one.json", "two.json"):
        run = result(np.exp(rng.normal(0.7, 0.01, 8)), repetitions=2)
        uneven = (replace(a, outcomes=tuple(replace(o, decode_tokens_per_s=o.decode_tokens_per_s * rng.normal(1, 0.01))
                                            for o in a.outcomes)) for a in run.answers)  # fmt: skip
        save(str(tmp_path / name), replace(run, answers=tuple(uneven)))
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "one.json"), str(tmp_path / "two.json"), "--comparisons", "40",
                                      "--repetitions", str(repetitions), "--output", str(tmp_path / "rates.json")])  # fmt: skip
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(SCRIPT, run_name="__main__")
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert stopped.value.code == status and len(last["real_pairs"]) == 1
    assert last["required_repetitions"] == {"ddtree": None if status else 6}
    assert json.loads((tmp_path / "rates.json").read_text())["strategies"]["ddtree"]["noise"]["cells"] > 0
