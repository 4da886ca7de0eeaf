"""The report's tables, sentences and figures, of runs whose figures are known by hand."""

import shlex

import pandas as pd
import pytest
from report_runs import save

from harness.colours import GREY
from harness.errors import UserError
from harness.report import batches, curves, environment, figures, published, sameness, show, tables, unmeasured, words
from harness.report.subject import read

FIGURES = (figures.speedups, figures.prompts, figures.histogram, figures.by_depth, figures.latencies, figures.round_times)


def of(*folders):
    return read([str(folder) for folder in folders])


@pytest.fixture
def one(tmp_path):
    return of(save(tmp_path / "run", differs=True))


def test_headline_has_the_terminals_figures(one):
    headline = tables.headline(one).set_index("strategy")
    assert list(headline.index) == ["baseline", "ddtree"]
    assert headline.loc["baseline", "speed tok/s"] == "50.0"  # 8 tokens in 8 rounds of 0.02 s
    assert headline.loc["ddtree", "acceptance tok/round"] == "4.00"  # 8 tokens in 2 rounds
    assert headline.loc["ddtree", "identical %"] == "87.5"


def test_speedup_names_its_extremes(one):
    row = tables.speedups(one).iloc[0]
    assert row["fastest prompt"] == "2.67× (q/0)"  # 0.16 s against 2 rounds of 0.03 s
    assert row["slowest prompt"] == "2.16× (q/7)"
    assert row["prompts slower than the baseline"] == "0 of 8"
    assert row["speedup [95 %]"].startswith("2.39× [2.")


def test_phases_and_their_rest(one):
    row = tables.round_times(one).set_index("strategy").loc["baseline"]
    shown = [row[f"{phase} [ms]"] for phase in ("draft", "verify", "accept and commit", "host gap", "round")]
    assert shown == ["5.00", "10.00", "2.50", "2.50", "20.00"]


def test_latency_percentiles_say_how_many_samples(one):
    rows = tables.latencies(one)
    assert set(rows["latency"]) == {"TTFT", "TPOT", "chunk"}
    assert rows[rows["latency"] == "chunk"]["samples"].tolist() == ["64", "16"]


def test_every_figure_is_drawn(one):
    for draw in FIGURES:
        assert "data:image/png;base64," in show.figure(draw(one), "what it shows").markup, draw.__name__
    assert figures.budgets(one) is None and tables.budgets(one).empty, "one budget is no curve"


def test_strategies_keep_their_colour_over_runs(tmp_path):
    both = of(save(tmp_path / "a"), save(tmp_path / "b", budget=32))
    assert both.colour("baseline") == GREY
    assert len({both.colour(name) for name in both.strategies}) == 2


def test_budgets_of_several_runs_make_a_curve(tmp_path):
    both = of(save(tmp_path / "a", budget=32), save(tmp_path / "b", budget=8))
    table = tables.budgets(both)
    assert table["node budget"].tolist() == [8, 32]
    assert table["strategy"].tolist() == ["B\u00a0·\u00a0ddtree", "A\u00a0·\u00a0ddtree"]
    assert len(figures.budgets(both).axes) == 2
    for draw in FIGURES:
        assert draw(both) is not None
    assert tables.runs(both)["run"].tolist() == ["A", "B"]
    assert [line[:6] for line in words.gist(both)] == ["Run A:", "Run B:"]


def test_batches_of_several_runs_make_a_curve_and_say_where_it_crosses_1(tmp_path):
    of_one, of_four, of_three = (save(tmp_path / f"of{n}", batch=n) for n in (1, 4, 3))
    subject = of(of_one, of_four, of_three)
    table = batches.table(subject).set_index("strategy")
    assert table["batches"].tolist() == ["8 of 1", "8 of 1", "2 of 4", "2 of 4", "2 of 3 (1 left out)", "2 of 3 (1 left out)"]
    # The slowest of prompts 0 to 3 and 4 to 7: four times 8 tokens in 2 rounds of 33 ms and of 37 ms, times 2.8.
    assert table["aggregate tok/s"].tolist()[1::2] == ["119.4", "163.3", f"{48 / (2.2 * (0.064 + 0.07)):.1f}"]
    assert table["aggregate tok/s"].iloc[0] == "50.0" and table["aggregate speedup [95 %]"].iloc[3].startswith("0.82×")
    (found,) = batches.crossings(subject)
    assert found["batches"] == [1, 3, 4] and found["speedups"] == pytest.approx([2.39, 1.09, 0.82], abs=0.01)
    assert found["crosses_1_at"] == [pytest.approx(3.3, abs=0.05)]
    (said,) = batches.sentences(subject)
    assert said.startswith("ddtree (m, quick): the aggregate speedup crosses 1 at a batch of 3.3") and "1.09× at 3, 0.82× at 4" in said
    assert "not within 1..3: 2.39× at 1" in batches.sentences(of(of_one, of_three))[0]
    assert len(batches.figure(subject).axes) == 2
    assert batches.table(of(of_one)).empty and batches.figure(of(of_four)) is None and batches.sentences(of(of_four)) == []
    assert batches.sentences(of(of_one, save(tmp_path / "other", batch=4, suite="gsm8k"))) != [], "the same prompts"
    assert "8 prompts, each decoded once greedily, 4 at a time, by 2 strategies." in words.gist(of(of_four))[0]
    assert "several requests at a time" not in set(unmeasured.unmeasured(of(of_four))["not measured"])


def test_budgets_in_batches_of_another_size_are_another_curve(tmp_path):
    runs = [save(tmp_path / f"{budget} {batch}", budget=budget, batch=batch) for budget in (8, 16) for batch in (1, 4)]
    points = [(run, "ddtree") for run in of(*runs).runs]
    assert [label for label, _ in curves.by_budget(points)] == ["AC: ddtree, m, quick", "BD: ddtree, m, quick"]
    assert [label for label, _ in curves.by_batch(points)] == ["AB: ddtree, m, quick", "CD: ddtree, m, quick"]


def test_divergences_come_with_place_and_margin(one):
    found = sameness.divergences(one).iloc[0]
    assert (found["prompt"], found["first differing token"], found["best minus second logit"]) == ("q/0", "4", "0.250")
    assert sameness.comparison(one).iloc[0]["identical"] == "87.5%"
    assert "1 of 8 answers compared differs" in sameness.verdicts(one)[0]


def test_a_difference_in_fp32_is_called_a_bug(tmp_path):
    assert sameness.verdicts(of(save(tmp_path / "run", differs=True, dtype="float32")))[0].startswith("NOT LOSSLESS")
    assert sameness.verdicts(of(save(tmp_path / "same", dtype="float32")))[0].startswith("All 8 answers")


def test_sampled_answers_are_not_called_different(tmp_path):
    assert "samples" in sameness.verdicts(of(save(tmp_path / "run", temperature=1.0, differs=True)))[0]


def test_what_was_not_measured_is_said_with_its_reason(tmp_path):
    run = save(tmp_path / "run", prompts=3, failed=True, ended=False, phases=False, differs=True)
    gaps = unmeasured.unmeasured(of(run))
    told = dict(zip(gaps["not measured"], gaps["why"]))
    assert "stopped before its end" in told["the rest of the run"]
    assert told["1 answer of ddtree"] == "failed: RuntimeError: out of <memory>"
    assert "Student's t" in told["a bootstrap interval"]
    assert "a round's phases, in full" in told and "bandwidth use" in told and "longer answers" in told
    assert "the target's margin at 1 of 1 first differences" in told


def test_a_killed_run_is_reported_with_a_warning(tmp_path):
    subject = of(save(tmp_path / "run", ended=False, failed=True))
    stopped, failed = words.warnings(subject)
    assert "Stopped before its end" in stopped and "1 of 17 cells failed" in failed


def test_a_run_without_baseline_has_no_speedup(tmp_path):
    subject = of(save(tmp_path / "run", baseline=None))
    assert tables.speedups(subject).empty and figures.speedups(subject) is None
    assert "nothing to draw" in show.figure(None, "", "nothing to draw").markup
    assert "no answer can be compared" in sameness.verdicts(subject)[0]


def test_published_figures_stand_beside_ours(tmp_path):
    subject = of(save(tmp_path / "run", model="qwen3-4b", suite="gsm8k"))
    row = published.beside(subject).iloc[0]
    assert (row["speedup, published"], row["acceptance, published"]) == ("6.58×", "9.33")
    assert row["acceptance, ours"] == "4.00"
    told = published.differences(subject).set_index("point")
    assert told.loc["longest answer"].tolist() == ["2048 tokens", "9 tokens"]
    assert told.loc["prompts"].tolist() == ["128", "8"]
    assert {"machine", "clock", "node budget", "speedup"} <= set(told.index)


@pytest.mark.parametrize("other", [{"model": "m"}, {"suite": "quick"}, {"temperature": 0.5}])
def test_published_figures_of_something_else_are_not_shown(tmp_path, other):
    subject = of(save(tmp_path / "run", **{"model": "Qwen3-4B", "suite": "gsm8k", **other}))
    assert published.beside(subject).empty and published.differences(subject).empty
    assert published.no_match(subject).count("\n") == 0


def test_the_published_table_is_whole():
    table = published.read()
    assert len(table) == 120 and not table.isna().any().any()
    assert {name for name, _ in published.SUITES.values()} == set(table["dataset"])


def test_the_environment_is_told_without_private_folders(one):
    facts = environment.shared(one).set_index("fact")["value"]
    assert environment.differing(one).empty
    assert facts["engine: cache"] == "blocks 3"
    assert facts["environment variables"] == "HARNESS_CACHE=(a folder), OMP_NUM_THREADS=2"
    assert environment.commands(one).splitlines() == [
        "git checkout 0123456789abcdef",
        "python -m pip install -c constraints.txt -e .",
        "python -m harness strategy.budget=16",
    ]


def test_what_differs_between_runs_stands_apart(tmp_path):
    both = of(save(tmp_path / "a"), save(tmp_path / "b", dtype="float32"))
    assert environment.differing(both).to_dict("records") == [
        {"run": "A", "engine: dtype": "bfloat16"},
        {"run": "B", "engine: dtype": "float32"},
    ]
    assert "engine: dtype" not in set(environment.shared(both)["fact"])


def test_a_gap_of_every_run_is_told_once(tmp_path):
    told = list(unmeasured.unmeasured(of(save(tmp_path / "a"), save(tmp_path / "b", phases=False)))["not measured"])
    assert told.count("bandwidth use") == 1
    assert "a round's phases, in full (run B)" in told


def test_a_run_whose_rounds_nobody_saw_is_reported_without_them(tmp_path):
    one = of(save(tmp_path / "a", seen=False, differs=True))
    assert words.gist(one)[0].endswith("] the baseline's speed.")
    assert sameness.divergences(one).iloc[0]["first differing token"] == "–"
    tpot, ttft = figures.latencies(one).axes
    assert [len(axes.lines) for axes in (tpot, ttft)] == [2, 2]
    runs = [save(tmp_path / f"b{budget}", seen=False, budget=budget) for budget in (4, 8, 12, 16, 24)]
    assert words.gist(of(*runs))[0].endswith("the baseline's speed.")
    assert figures.budgets(of(*runs)) is None and tables.budgets(of(*runs)).empty


def test_the_command_behind_a_report_can_be_typed(tmp_path):
    one, two = save(tmp_path / "it's $HOME, {x}"), save(tmp_path / "b")
    assert shlex.split(environment.report_command(of(one))) == ["python", "-m", "harness.report", one.name]
    assert shlex.split(environment.report_command(of(one, two)))[3:] == [one.name, two.name, "--output", "FOLDER"]


def test_text_from_outside_is_escaped():
    table = pd.DataFrame([{"a": "<script>", "b": "x & y"}])
    assert "<script>" not in show.table(table, "<b>").markup
    assert show.table(pd.DataFrame(), otherwise="none").markup == "<p>none</p>"


def test_an_almost_whole_share_is_not_rounded_to_whole():
    assert [tables.share(v) for v in (0, 1, 0.9999, 0.0001, None)] == ["0%", "100%", "99.9%", "0.1%", "–"]


@pytest.mark.parametrize("damage", ["cells.jsonl", "environment.json", "summary.json", "config.yaml"])
def test_a_damaged_folder_is_refused_in_one_line(tmp_path, damage):
    folder = save(tmp_path / "run")
    file = folder / damage
    file.write_bytes(file.read_bytes()[:40].replace(b"m", b"{") + b"\n")
    with pytest.raises(UserError) as refused:
        of(folder)
    assert str(refused.value).count("\n") == 0 and str(folder) in str(refused.value)


def test_a_folder_without_a_measured_cell_is_refused(tmp_path):
    with pytest.raises(UserError, match="nothing was measured"):
        of(save(tmp_path / "run", prompts=0))
    with pytest.raises(UserError, match="all 1 failed.*out of"):
        of(save(tmp_path / "failed", prompts=0, failed=True))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no run's folder"):
        of(tmp_path / "empty")
    with pytest.raises(UserError, match="there is no such folder"):
        of(tmp_path / "nowhere")


def test_the_same_run_twice_is_refused(tmp_path):
    folder = save(tmp_path / "run")
    with pytest.raises(UserError, match="given twice"):
        of(folder, folder)
