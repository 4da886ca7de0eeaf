"""Suites: the right rows, worded right, the same every time; wrong files and wrong limits refused in one line."""

import gzip
import hashlib
import json
import os
from collections import Counter
from pathlib import Path

import pytest
import yaml

from harness.errors import UserError
from harness.suites import HUB_SUITES, SUITES, Row, Suite, SuiteConfig, load
from harness.suites.selection import together

REPOSITORY = Path(__file__).parent.parent
EXTERNAL = [name for name in SUITES if name != "quick"]
FOLDER = Path(os.environ.get("HARNESS_SUITES") or REPOSITORY.parent / "shared" / "suites")


def file_or_skip(name: str) -> Path:
    path = FOLDER / SUITES[name].file
    if not path.is_file():
        pytest.skip(f"{path.name} not found; set HARNESS_SUITES to the folder that holds the suites' files")
    return path


def load_or_skip(name: str, **options):
    return load(SuiteConfig(name=name, root=str(file_or_skip(name).parent), **options))


def refusal(**options) -> str:
    with pytest.raises(UserError) as caught:
        load(SuiteConfig(**options))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_quick_is_a_mix_of_eight_categories_at_every_prefix():
    suite = load(SuiteConfig())
    assert len(suite.rows) == suite.total_rows == 32
    assert len({row.id for row in suite.rows}) == 32
    assert set(Counter(row.category for row in suite.rows).values()) == {4}
    for n in range(1, 33):
        counts = Counter(row.category for row in load(SuiteConfig(limit=n)).rows)
        assert len(counts) == min(n, 8) and max(counts.values()) <= -(-n // 8)
    assert all(len(row.turns) == (2 if row.category == "multi-turn" else 1) for row in suite.rows)
    assert (suite.licence, suite.source, suite.checksum) == ("CC0-1.0", "this project", SUITES["quick"].sha256)


def test_quick_ignores_the_seed():
    assert load(SuiteConfig(limit=5, seed=1)).rows == load(SuiteConfig(limit=5, seed=2)).rows


@pytest.mark.parametrize("limit", [0, -1, 33, True, "ten"])
def test_impossible_limits_are_refused(limit):
    assert f"suite.limit={limit}" in refusal(limit=limit)


def test_impossible_turns_and_unknown_names_are_refused():
    assert "suite.max_turns=0" in refusal(max_turns=0)
    assert "nosuch" in refusal(name="nosuch") and "mt_bench" in refusal(name="nosuch")


@pytest.mark.parametrize("name", EXTERNAL)
def test_missing_file_names_file_folder_and_source(name, tmp_path):
    message = refusal(name=name, root=str(tmp_path))
    assert SUITES[name].file in message and str(tmp_path) in message and SUITES[name].repository in message


def test_root_defaults_to_the_cache_folder(tmp_path, monkeypatch):
    pytest.importorskip("harness.cache_folder")
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    assert str(tmp_path / "suites") in refusal(name="gsm8k")


@pytest.mark.parametrize("name", EXTERNAL)
@pytest.mark.parametrize("damage", ["truncated", "altered", "empty"])
def test_damaged_files_are_refused(name, damage, tmp_path):
    source = file_or_skip(name)
    data = source.read_bytes()
    middle = len(data) // 2
    flipped = b"x" if data[middle : middle + 1] != b"x" else b"y"
    altered = data[:middle] + flipped + data[middle + 1 :]
    damaged = {"truncated": data[:middle], "altered": altered, "empty": b""}
    (tmp_path / source.name).write_bytes(damaged[damage])
    message = refusal(name=name, root=str(tmp_path))
    assert source.name in message and SUITES[name].sha256 in message


def test_the_found_checksum_is_in_the_refusal(tmp_path):
    (tmp_path / "gsm8k_test.jsonl").write_bytes(b"other")
    assert hashlib.sha256(b"other").hexdigest() in refusal(name="gsm8k", root=str(tmp_path))


def test_mbpp_is_pinned_by_its_rows_not_its_bytes(tmp_path):
    source = file_or_skip("mbpp")
    (tmp_path / source.name).write_text(json.dumps(json.loads(source.read_text()), indent=7))
    assert load(SuiteConfig(name="mbpp", root=str(tmp_path))).rows == load_or_skip("mbpp").rows


@pytest.mark.parametrize(
    "name, rows, turns",
    [("gsm8k", 1319, 1), ("math500", 500, 1), ("humaneval", 164, 1), ("mbpp", 257, 1), ("mt_bench", 80, 2)],
)
def test_row_counts_and_turns(name, rows, turns):
    suite = load_or_skip(name)
    assert len(suite.rows) == suite.total_rows == rows == len({row.id for row in suite.rows})
    assert {len(row.turns) for row in suite.rows} == {turns}


def test_spec_bench_has_six_tasks_of_eighty():
    suite = load_or_skip("spec_bench")
    counts = Counter(row.category for row in suite.rows)
    big = {"translation", "summarization", "qa", "math_reasoning", "rag"}
    assert {counts[task] for task in big} == {80}
    assert sum(n for task, n in counts.items() if task not in big) == 80
    assert Counter(len(row.turns) for row in suite.rows) == {1: 400, 2: 80}


def test_wording_is_the_papers():
    suffix = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    for name, field in (("gsm8k", "question"), ("math500", "problem")):
        raw = json.loads(file_or_skip(name).open().readline())[field]
        assert load_or_skip(name).rows[0].turns == (raw + suffix,)
    raw = json.loads(gzip.open(file_or_skip("humaneval")).readline())["prompt"]
    asked = "Write a solution to the following problem and make sure that it passes the tests:"
    assert load_or_skip("humaneval").rows[0].turns == (f"{asked}\n```python\n{raw}\n```",)
    first = next(r for r in json.loads(file_or_skip("mbpp").read_text()) if r["task_id"] == 11)
    assert load_or_skip("mbpp").rows[0].turns == (first["prompt"],)


def test_subset_is_the_papers_shuffle_and_nested():
    full = load_or_skip("gsm8k")
    small, large = load_or_skip("gsm8k", limit=5), load_or_skip("gsm8k", limit=128)
    assert small.rows == large.rows[:5] and set(large.rows) < set(full.rows)
    # What `datasets` 5.2.0 gives: Dataset.from_dict({"i": list(range(1319))}).shuffle(seed=0)["i"][:5]
    assert [row.id for row in small.rows] == [f"gsm8k/{i}" for i in (264, 725, 996, 586, 1010)]
    assert load_or_skip("gsm8k", limit=5, seed=1).rows != small.rows
    assert "suite.seed=-1" in refusal(name="gsm8k", root=str(FOLDER), limit=5, seed=-1)


def test_max_turns_cuts_every_conversation():
    assert {len(row.turns) for row in load_or_skip("mt_bench", max_turns=1).rows} == {1}


def test_every_suite_has_its_configuration():
    files = sorted((REPOSITORY / "conf" / "suite").glob("*.yaml"))
    assert {file.stem for file in files} == {*SUITES, *HUB_SUITES, "three"}
    for file in files:
        of = {"of": ["gsm8k", "humaneval", "mt_bench"]} if file.stem == "three" else {}
        assert SuiteConfig(**yaml.safe_load(file.read_text())) == SuiteConfig(name=file.stem, **of)


# several suites in one run

def part(name: str, rows: int) -> Suite:
    made = tuple(Row(f"{name}/{n}", "kind", (f"{name} {n}?",)) for n in range(rows))
    return Suite(name, hashlib.sha256(name.encode()).hexdigest(), made, "{question}", "somewhere", "MIT", 10)


def test_several_suites_take_turns_and_their_rows_say_which_they_are_of():
    mixed = together("mix", [part("a", 1), part("b", 3), part("c", 2)])
    assert [row.id for row in mixed.rows] == ["a/0", "b/0", "c/0", "b/1", "c/1", "b/2"]
    assert all(row.category == row.id[0] for row in mixed.rows) and mixed.total_rows == 30
    said = mixed.to_json()
    assert said["prompts"] == 6 and [part["name"] for part in said["of"]] == ["a", "b", "c"]
    assert [found["sha256"] for found in said["of"]] == [part(name, 1).checksum for name in "abc"]
    assert said["licence"] == "a: MIT; b: MIT; c: MIT"
    assert "of" not in part("a", 1).to_json(), "a single suite says what it always said"


def test_the_checksum_of_several_suites_holds_every_one_and_their_order():
    made = [together("mix", [part(name, 2) for name in names]).checksum for names in ("ab", "ba", "ac", "abc")]
    assert len(set(made)) == 4 and together("other", [part("a", 1), part("b", 2)]).checksum == made[0]


def test_three_suites_have_the_rows_that_each_has_alone():
    config = yaml.safe_load((REPOSITORY / "conf/suite/three.yaml").read_text())
    alone = [load_or_skip(name, limit=3, max_turns=1) for name in config["of"]]
    config |= {"limit": 3, "max_turns": 1, "root": str(FOLDER)}
    found = load(SuiteConfig(**config))
    assert {row.id for row in found.rows} == {row.id for suite in alone for row in suite.rows} and len(found.rows) == 9
    assert [row.category for row in found.rows[:3]] == config["of"] == ["gsm8k", "humaneval", "mt_bench"]
    assert [made["sha256"] for made in found.to_json()["of"]] == [SUITES[name].sha256 for name in config["of"]]


@pytest.mark.parametrize("of, why", [([], "names none"), (["quick", "quick"], "names a suite twice"), (["quick", "nosuch"], "nosuch is no suite")])
def test_wrong_mixes_are_refused(of, why):
    assert f"suite.of=[{','.join(of)}]: {why}; choose of quick, gsm8k" in refusal(name="mix", of=of)


def test_a_mix_may_not_be_called_like_one_suite():
    assert refusal(name="gsm8k", of=["quick"]).startswith("suite.name=gsm8k: is one suite")


def test_a_limit_beyond_one_of_several_suites_names_it():
    assert "quick has 32 rows" in refusal(name="mix", of=["quick"], limit=33)
