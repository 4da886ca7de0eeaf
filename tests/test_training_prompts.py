"""Training prompts: the right questions, a reproducible mix, and no row of any suite among them."""

import ast
import gzip
import json
import os
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.suites import SUITES, SuiteConfig, load
from harness.suites.wording import HUMANEVAL, MATHS, bare, worded
from harness.training.open_turns import OPEN_TURNS
from harness.training.overlap import PASSAGE_WORDS, normalised, overlap, without_overlap
from harness.training.prompts import WEIGHTS, Prompt, gsm8k_train, mbpp_outside_evaluation, mix, openings

FOLDER = Path(os.environ.get("HARNESS_SUITES") or Path(__file__).parent.parent.parent / "shared" / "suites")
SUFFIX = "Please reason step by step, and put your final answer within \\boxed{}."


def file_or_skip(name: str) -> Path:
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{name} not found; set HARNESS_SUITES to the folder that holds the suites' files")
    return path


def suite_or_skip(name: str):
    file = SUITES[name].file
    return load(SuiteConfig(name=name, root=None if name == "quick" else str(file_or_skip(file).parent)))


def questions(source: str) -> tuple[Prompt, ...]:
    if source == "gsm8k":
        return gsm8k_train(file_or_skip("gsm8k_train.jsonl"))
    if source == "mbpp":
        return mbpp_outside_evaluation(file_or_skip("mbpp_sanitized.json"))
    return openings()


@pytest.mark.parametrize("source", ["gsm8k", "mbpp", "open"])
@pytest.mark.parametrize("suite", list(SUITES))
def test_no_suite_row_is_among_the_training_prompts(source, suite):
    assert overlap([prompt.text for prompt in questions(source)], [suite_or_skip(suite)]) == []


@pytest.mark.parametrize("suite", [name for name in SUITES if name != "quick"])
def test_quick_copies_no_benchmark_row(suite):
    turns = [turn for row in load(SuiteConfig()).rows for turn in row.turns]
    assert overlap(turns, [suite_or_skip(suite)]) == []


def test_overlap_finds_equal_rows_and_long_passages():
    quick = load(SuiteConfig())
    row = next(row for row in quick.rows if len(row.turns[0].split()) > PASSAGE_WORDS + 4)
    words = row.turns[0].split()
    shouted = worded(MATHS, row.turns[0].upper() + " !")
    quoting = "Once upon a time. " + " ".join(words[2 : 2 + PASSAGE_WORDS + 2]) + " and so on"
    too_short = " ".join(normalised(row.turns[0]).split()[: PASSAGE_WORDS - 1])
    found = overlap([shouted, quoting, too_short, "", "Something else."], [quick])
    assert [(each.kind, each.prompt, each.suite, each.row) for each in found] == [
        ("equal", 0, "quick", row.id),
        ("passage", 1, "quick", row.id),
    ]
    assert len(found[1].words.split()) == PASSAGE_WORDS
    assert without_overlap([shouted, quoting, "Something else."], [quick]) == ["Something else."]


def test_overlap_sees_later_turns():
    quick = load(SuiteConfig())
    row = next(row for row in quick.rows if len(row.turns) == 2)
    assert [each.row for each in overlap([row.turns[1]], [quick])] == [row.id]


def test_the_wording_itself_is_no_overlap():
    suite = suite_or_skip("gsm8k")
    assert overlap([worded(MATHS, "How many?"), worded(HUMANEVAL, "def f():")], [suite]) == []
    assert bare(worded(MATHS, "{x}")) == "{x}" == bare(worded(HUMANEVAL, "{x}"))


def test_gsm8k_training_rows_are_half_worded():
    prompts = questions("gsm8k")
    assert 7460 < len(prompts) < 7473
    assert {prompt.complete for prompt in prompts} == {True}
    assert 0.49 < sum(prompt.text.endswith("\n" + SUFFIX) for prompt in prompts) / len(prompts) < 0.51


def test_mbpp_training_tasks_lie_outside_the_evaluation_split():
    records = {r["prompt"]: r["task_id"] for r in json.loads(file_or_skip("mbpp_sanitized.json").read_text())}
    prompts = questions("mbpp")
    plain = [prompt.text for prompt in prompts if prompt.text in records]
    assert 160 < len(plain) < 171 and len(prompts) == 2 * len(plain)
    assert all(not 11 <= records[text] <= 510 for text in plain)
    for prompt in prompts[1::2]:
        body = bare(prompt.text)
        assert body != prompt.text and ast.get_docstring(ast.parse(body).body[-1])


def test_altered_training_files_are_refused(tmp_path):
    for name, read in (("gsm8k_train.jsonl", gsm8k_train), ("mbpp_sanitized.json", mbpp_outside_evaluation)):
        with pytest.raises(UserError, match=re.escape(name)):
            read(tmp_path / name)
        (tmp_path / name).write_text("[]")
        with pytest.raises(UserError, match="expected sha256"):
            read(tmp_path / name)


def test_openings_are_many_varied_and_of_every_kind():
    texts = [text for _, text in OPEN_TURNS]
    assert len(texts) >= 150 and len(set(texts)) == len(texts)
    counts = Counter(category for category, _ in OPEN_TURNS)
    assert set(counts) >= {"code", "maths", "chat", "writing", "extraction", "translation", "summary", "reasoning"}
    assert {f"open/{category}" for category in counts} <= set(WEIGHTS)
    assert counts.pop("any") == 1 and min(counts.values()) >= 5


def test_openings_name_no_function_of_humaneval():
    names = {json.loads(line)["entry_point"] for line in gzip.open(file_or_skip("HumanEval.jsonl.gz"), "rt")}
    named = {name for _, text in OPEN_TURNS for name in re.findall(r"def (\w+)", text)}
    assert len(named) > 30 and not named & names


@pytest.mark.parametrize("suite", list(SUITES))
def test_no_long_opening_begins_a_suite_row(suite):
    rows = [normalised(bare(turn)) + " " for row in suite_or_skip(suite).rows for turn in row.turns]
    for _, text in OPEN_TURNS:
        words = normalised(text.removeprefix(HUMANEVAL.split("{question}")[0]))
        if len(words.split()) >= 8:
            assert not any(row.startswith(words + " ") for row in rows), text


def some(source: str, n: int) -> list[Prompt]:
    return [Prompt(source, "maths", f"{source} {i}", True) for i in range(n)]


def test_mix_is_reproducible_and_keeps_its_weights():
    first, again, other = (list(mix(seed, 4000, some("gsm8k", 10))) for seed in (0, 0, 1))
    assert first == again != other and len(first) == 4000
    assert list(islice(mix(0, 10, some("gsm8k", 10)), 10)) == first[:10]
    share = Counter(prompt.source for prompt in first)
    present = sum(weight for name, weight in WEIGHTS.items() if name != "mbpp")
    for name, weight in WEIGHTS.items():
        assert share[name] / 4000 == pytest.approx(0 if name == "mbpp" else weight / present, abs=0.03)


def test_mix_uses_every_item_before_any_again():
    drawn = list(mix(3, 30, some("gsm8k", 10), {"gsm8k": 1}))
    for start in (0, 10, 20):
        assert len({prompt.text for prompt in drawn[start : start + 10]}) == 10
    assert drawn[:10] != drawn[10:20]


@pytest.mark.parametrize("weights", [{"gsm8k": -1}, {"gsm8k": 0}, {"mbpp": 1}, {}])
def test_mix_refuses_weights_that_cannot_be(weights):
    with pytest.raises(UserError):
        mix(0, 1, some("gsm8k", 1), weights)
