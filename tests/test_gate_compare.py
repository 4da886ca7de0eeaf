"""The gate's verdicts: deterministic figures exactly, speed by its interval, senseless comparisons refused."""

from dataclasses import replace

import pytest
from gate_results import ABOUT, BF16, change, fail, result
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.gate.compare import Options, compare
from harness.gate.result import VARIES, Result
from harness.gate.verdict import Verdict, judge
from harness.stats import Estimate

PASS, REGRESSED, INCONCLUSIVE = Verdict.PASS, Verdict.REGRESSED, Verdict.INCONCLUSIVE
ORDER = [REGRESSED, INCONCLUSIVE, PASS]
some_speedups = st.lists(st.floats(0.3, 8), min_size=1, max_size=12)
few = settings(max_examples=30, deadline=None)


def verdicts(candidate: Result, baseline: Result, **options) -> dict[tuple[str, str], Verdict | None]:
    found = compare(candidate, baseline, Options(**options))
    return {(f.strategy, f.name): f.verdict for f in found.figures}


def failing(candidate: Result, baseline: Result, **options) -> list[tuple[str, str]]:
    return [name for name, verdict in verdicts(candidate, baseline, **options).items() if verdict is REGRESSED]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.951, 1.1, PASS), (0.9, 0.949, REGRESSED), (0.9, 1.0, INCONCLUSIVE), (0.9499, 1, INCONCLUSIVE), (0.95, 1, PASS), (1, 1, PASS)],
)
def test_a_verdict_is_where_the_interval_lies(low, high, verdict):
    assert judge(Estimate((low + high) / 2, low, high), 0.05)[0] is verdict


def test_no_interval_decides_nothing():
    assert judge(None, 0.05)[0] is judge(Estimate(0.1), 0.05)[0] is INCONCLUSIVE
    assert "about 5 times" in judge(Estimate(1.0, 0.9, 1.1), 0.05)[1], "(log 0.9 / log 0.95) ** 2 is 4.2"
    assert "about 5 times" in judge(Estimate(0.9, 0.8, 1.01), 0.05)[1], "(log(1.01 / 0.9) / log(0.95 / 0.9)) ** 2 is 4.5"
    assert "hardly" in judge(Estimate(0.95, 0.9, 1.0), 0.05)[1]


@few
@example([2.0], BF16, 1, 1)
@given(some_speedups, st.sampled_from([ABOUT, BF16]), st.integers(1, 3), st.integers(1, 2))
def test_a_run_passes_against_itself(speedups, about, repetitions, turns):
    run = result(speedups, repetitions, about, turns)
    found = compare(run, run)
    assert found.verdict is PASS and found.verdict.exit_status == 0 and found.exact == (about is ABOUT)


def test_rounds_of_a_budget_left_to_the_clock_may_move_and_tokens_may_not():
    clocked = replace(ABOUT, strategies={"baseline": {}, "ddtree": {"budget": "auto"}})
    run, moved = result(about=clocked), change(result(about=clocked), "ddtree", 8, rounds=19, accepted=21)
    found = verdicts(moved, run)
    assert ("ddtree", "rounds") not in found and ("baseline", "rounds") in found
    assert found["ddtree", "acceptance length"] is found["ddtree", "tokens"] is PASS
    assert failing(change(run, "ddtree", 8, rounds=30), run) == [("ddtree", "acceptance length")]
    other = failing(change(moved, "ddtree", tokens_sha256="other"), run)
    assert other == [("ddtree", "tokens"), ("ddtree", "identical to the baseline arm")]
    assert ("ddtree", "rounds") not in verdicts(run, result()), "against a run with a fixed budget too"
    assert ("ddtree", "rounds") in failing(change(result(), "ddtree", 1, rounds=19), result())


@few
@given(some_speedups, some_speedups, st.floats(0.1, 1))
def test_a_slower_candidate_never_has_a_better_verdict(ours, theirs, factor):
    count = min(len(ours), len(theirs))
    fast, slow = result(ours[:count]), result([factor * s for s in ours[:count]])
    baseline = result(theirs[:count])
    speedup = "ddtree", "speedup"
    one, other = verdicts(fast, baseline)[speedup], verdicts(slow, baseline)[speedup]
    assert ORDER.index(other) <= ORDER.index(one)


@few
@example([0.75], [0.75], 0.01)
@given(some_speedups, some_speedups, st.floats(0.01, 100))
def test_speeds_of_another_machine_change_no_verdict(ours, theirs, factor):
    count = min(len(ours), len(theirs))
    candidate, baseline = result(ours[:count]), result(theirs[:count])
    scaled = replace(candidate, answers=tuple(
        replace(a, outcomes=tuple(replace(o, decode_tokens_per_s=o.decode_tokens_per_s * factor) for o in a.outcomes))
        for a in candidate.answers))  # fmt: skip
    assert verdicts(scaled, baseline) == verdicts(candidate, baseline)


@few
@given(some_speedups, st.randoms())
def test_the_order_of_answers_changes_nothing(speedups, random):
    run, other = result(speedups), result([2.0] * len(speedups))
    shuffled = replace(run, answers=tuple(random.sample(run.answers, len(run.answers))))
    assert compare(shuffled, other) == compare(run, other)


def test_a_loss_and_a_gain():
    eight = [2.0, 2.1, 1.9, 2.05, 2.2, 1.8, 2.0, 2.1]
    baseline = result(eight)
    assert failing(result([0.9 * s for s in eight]), baseline) == [("ddtree", "speedup")]
    assert failing(result([0.9 * s for s in eight]), baseline, tolerance=0.2) == []
    assert failing(result([1.5 * s for s in eight]), baseline) == []
    assert failing(result([0.9 * s for s in eight]), baseline, only="acceptance") == []


def test_a_prompt_is_compared_with_itself():
    """Prompts whose speedups lie between 1 and 8 lose 1 % each: nothing else may widen the interval."""
    steep = [1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0]
    found = compare(result([0.99 * s for s in steep]), result(steep), Options(only="speed"))
    change = next(f.change for f in found.figures if (f.strategy, f.name) == ("ddtree", "speedup"))
    assert change.to_json() == pytest.approx([0.99] * 3) and found.verdict is PASS


@pytest.mark.parametrize(
    ("changed", "figures"),
    [
        ({"tokens_sha256": "other"}, ["tokens", "identical to the baseline arm"]),
        ({"output_tokens": 40}, ["tokens"]),
        ({"rounds": 21}, ["rounds"]),
        ({"rounds": 19}, ["rounds"]),
        ({"accepted": 21}, ["accepted"]),
    ],
)
def test_in_fp32_one_unequal_answer_regresses(changed, figures):
    baseline = result()
    assert failing(change(baseline, "ddtree", **changed), baseline) == [("ddtree", name) for name in figures]


def test_the_baseline_arm_itself_is_compared_exactly():
    both = change(change(result(), "ddtree", tokens_sha256="new"), "baseline", tokens_sha256="new")
    assert failing(both, result()) == [("baseline", "tokens"), ("ddtree", "tokens")]
    broken_before = change(result(), "ddtree", tokens_sha256="new")
    assert failing(broken_before, broken_before) == [("ddtree", "identical to the baseline arm")]


def test_repetitions_that_differ_are_no_exact_result():
    run = result()
    first = run.answers[1]
    split = replace(first, outcomes=(first.outcomes[0], replace(first.outcomes[1], rounds=9)))
    found = compare(replace(run, answers=(run.answers[0], split, *run.answers[2:])), run)
    assert [f.detail for f in found.figures if f.verdict is REGRESSED] == [
        "unequal in 1 of 8 answers, first p00 turn 0; repetitions of one run differ among themselves"
    ]


def test_in_bf16_acceptance_has_an_interval_and_a_tolerance():
    baseline = result(about=BF16)
    assert failing(change(baseline, "ddtree", prompts=8, rounds=21), baseline) == []
    assert failing(change(baseline, "ddtree", prompts=8, rounds=24), baseline) == [("ddtree", "acceptance length")]
    assert any("bfloat16" in note for note in compare(baseline, baseline).notes)


def test_in_bf16_garbled_answers_regress_though_they_are_fast():
    baseline = result(about=BF16)
    garbled = change(baseline, "ddtree", prompts=8, tokens_sha256="garbage", rounds=10)
    assert failing(garbled, baseline) == [("ddtree", "identical to the baseline arm")]
    assert failing(change(baseline, "ddtree", prompts=1, tokens_sha256="rounding"), baseline) == []


def test_sampled_answers_are_not_held_against_the_baseline_arm():
    about = replace(ABOUT, sampling={**ABOUT.sampling, "temperature": 1.0})
    run = result(about=about)
    found = verdicts(change(run, "ddtree", prompts=8, tokens_sha256="other"), run)
    assert found["ddtree", "identical to the baseline arm"] is None and ("ddtree", "tokens") not in found


def test_failures_must_not_increase():
    run = result()
    assert failing(fail(run, "ddtree", "p00"), run) == [("ddtree", "failed cells")]
    assert failing(run, fail(run, "ddtree", "p00")) == []
    assert failing(fail(run, "baseline", "p01"), fail(run, "baseline", "p00")) == []


@pytest.mark.parametrize("one", [result([2.1]), result([2.1] * 8, repetitions=1)])
def test_one_prompt_or_one_repetition_is_inconclusive_and_says_what_to_do(one):
    names = {a.prompt for a in one.answers}
    other = replace(result(repetitions=1), answers=tuple(a for a in result(repetitions=1).answers if a.prompt in names))
    found = compare(one, other, Options(only="speed"))
    assert found.verdict is INCONCLUSIVE and found.verdict.exit_status == 3
    assert "measure more" in "".join(f.detail for f in found.figures)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_sha256", "xyz"), ("dtype", "bfloat16"), ("engine", "vllm"), ("suite", "gsm8k"), ("suite_sha256", "0"),
        ("baseline_arm", None), ("load", "measure.concurrency=4"), ("sampling", {**ABOUT.sampling, "max_new_tokens": 32}),
        ("sampling", {**ABOUT.sampling, "temperature": 0.7}), ("batch", 8),
    ],
)  # fmt: skip
def test_another_question_is_refused_naming_both_values(name, value):
    with pytest.raises(UserError, match=rf"^{name}.*: .* in the candidate, .* in the baseline") as refused:
        compare(result(about=replace(ABOUT, **{name: value})), result())
    assert "\n" not in str(refused.value)


def test_what_does_not_matter_is_not_refused():
    other = replace(ABOUT, sampling={**ABOUT.sampling, "seed": 3}, machine={"cpu": "B", "cores": 2, "gpus": []},
                    strategies={"baseline": {}, "ddtree": {"budget": 32}},
                    code={"git": None, "torch": "3"})  # fmt: skip
    found = compare(result(about=other), result())
    assert "torch 3 instead of 2" in found.notes
    assert found.verdict is PASS
    assert "cpu B instead of Example CPU" in found.notes[0] and "ddtree.budget: 32 instead of 16" in found.notes
    for elsewhere in ({"engine": "vllm"}, {"batch": 8}, {"load": "measure.rate=2.5"}):
        assert compare(result(about=replace(ABOUT, **elsewhere)), result(), Options(only="acceptance")).verdict is PASS


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        ({"ddtree": {"sha256": "a"}}, []),
        ({"ddtree": {"sha256": "b"}}, ["ddtree: another drafter than the baseline's, by its checksum"]),
        ({"ddtree": {"sha256": "a"}, "mtp": {"sha256": "c"}}, []),
        ({"ddtree": None}, []),
        (None, []),
    ],
)
def test_another_drafter_is_told_where_both_are_known(ours, told):
    code = {"git": None, "torch": "2"}
    theirs = replace(ABOUT, code={**code, "drafters": {"baseline": None, "ddtree": {"sha256": "a"}}})
    found = compare(result(about=replace(ABOUT, code={**code, "drafters": ours})), result(about=theirs))
    assert [note for note in found.notes if "drafter" in note] == told


def test_the_same_measurements_and_other_repetitions_are_told():
    same, fewer = (compare(result(repetitions=n), result()).notes for n in (2, 1))
    assert any("the very same measurements" in note for note in same) and not any("repetitions" in note for note in same)
    assert "repetitions: 1 in the candidate, 2 in the baseline" in fewer and not any("very same" in note for note in fewer)


def test_rounds_that_nobody_counted_are_not_equal_rounds():
    unseen = result(rounds=0)
    unseen = replace(unseen, answers=tuple(replace(a, outcomes=tuple(replace(o, rounds=0, accepted=0) for o in a.outcomes)) for a in unseen.answers))
    for candidate, baseline in ((unseen, unseen), (unseen, result()), (result(), unseen)):
        found = verdicts(candidate, baseline, only="acceptance")
        assert found["ddtree", "rounds"] is found["ddtree", "accepted"] is INCONCLUSIVE and found["ddtree", "tokens"] is PASS


@pytest.mark.parametrize("factor, verdict", [(1.0, PASS), (0.999, INCONCLUSIVE), (0.9, REGRESSED)])
def test_a_tolerance_of_nothing(factor, verdict):
    run, slower = result(), result([2.0 * factor * (1 + 0.001 * n * (factor == 0.999)) for n in range(-4, 4)])
    assert verdicts(slower, run, tolerance=0.0)["ddtree", "speedup"] is verdict


def test_other_prompts_are_refused_unless_only_the_common_ones_are_asked_for():
    fewer = result([2.0] * 6)
    with pytest.raises(UserError, match="p06 turn 0.*6 prompts and turns in the candidate, 8 in the baseline.*--common"):
        compare(fewer, result())
    found = compare(fewer, result(), Options(common=True))
    assert found.verdict is PASS and any("2 prompts and turns" in note for note in found.notes)
    renamed = replace(fewer, answers=tuple(replace(a, prompt_sha256="x" + a.prompt_sha256) for a in fewer.answers))
    with pytest.raises(UserError, match="p00 turn 0.*hash to xsha00 in the candidate, sha00"):
        compare(renamed, fewer)
    with pytest.raises(UserError, match="nothing can be compared"):
        compare(renamed, fewer, Options(common=True))


def test_later_turns_after_other_answers_are_left_out():
    run = result(about=BF16, turns=2)
    for sha256 in ("another history", VARIES):
        other = replace(run, answers=tuple(replace(a, prompt_sha256=sha256) if a.turn else a for a in run.answers))
        found = compare(other, other if sha256 == VARIES else run)
        assert found.verdict is PASS and sum("8 later turns" in note for note in found.notes) == 2


def test_missing_strategies_and_arms_are_refused():
    run = result()
    alone = replace(run, answers=tuple(a for a in run.answers if a.strategy == "baseline"))
    armless = replace(run, answers=tuple(a for a in run.answers if a.strategy == "ddtree"))
    with pytest.raises(UserError, match="strategy ddtree: not in the candidate, which has baseline"):
        compare(alone, run)
    with pytest.raises(UserError, match="strategy baseline: not in the candidate"):
        compare(armless, run)
    with pytest.raises(UserError, match="strategy mtp: not in the candidate"):
        compare(run, run, Options(strategies=["mtp"]))
    with pytest.raises(UserError, match="baseline arm: none"):
        compare(*[result(about=replace(ABOUT, baseline_arm=None))] * 2)
    assert any("not compared: ddtree" in note for note in compare(run, alone).notes)
    assert compare(run, run, Options(strategies=["ddtree"])) == compare(run, run)


def test_a_slow_pass_over_all_prompts_is_not_taken_for_slow_code():
    """Prompts agree perfectly that the candidate lost 10 %; that its two passes lost 0 and 20 % says how little that is."""
    run = result()
    answers = []
    for a in run.answers:
        slowed = replace(a.outcomes[1], decode_tokens_per_s=a.outcomes[1].decode_tokens_per_s * 0.8)
        answers.append(replace(a, outcomes=(a.outcomes[0], slowed)) if a.strategy == "ddtree" else a)
    uneven = replace(run, answers=tuple(answers))
    assert verdicts(uneven, run)["ddtree", "speedup"] is INCONCLUSIVE
    assert verdicts(uneven, uneven)["ddtree", "speedup"] is PASS, "the same measurements twice"


def test_absolute_speeds_are_compared_on_one_machine_only():
    run, halved = result(), result()
    for strategy in ("baseline", "ddtree"):
        halved = change(halved, strategy, prompts=8, decode_tokens_per_s=5.0)
    assert ("ddtree", "decode speed") in failing(halved, run, absolute=True)
    with pytest.raises(UserError, match="--absolute: cores is 64 in the candidate, 2 in the baseline"):
        compare(result(about=replace(ABOUT, machine={**ABOUT.machine, "cores": 64})), run, Options(absolute=True))
