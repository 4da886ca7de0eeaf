"""Suites of the hub: a revision from the user, the checksum seen is kept, other bytes are refused; the papers' wording."""

import importlib.util
import json
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.suites import HUB_SUITES, SuiteConfig, load
from harness.suites.__main__ import main

RECORDS = {
    "aime24": [{"id": i, "problem": f"Find {{{i}}}.", "answer": "1"} for i in range(30)],
    "aime25": [{"problem_idx": i, "problem": f"Find {i}.", "answer": 1} for i in range(30)],
    "livecodebench": [
        {"question_content": "Add two numbers.", "starter_code": "", "private_test_cases": "x"},
        {"question_content": "Add.", "starter_code": "class Solution:\n    def add(self):", "difficulty": "easy"},
    ],
    "swe_bench_lite": [{"instance_id": "a__b-1", "problem_statement": "It breaks.", "patch": "-"}],
    "alpaca": [
        {"instruction": "Sum up.", "input": "Once upon a time.", "output": "-"},
        {"instruction": "Name a colour.", "input": "", "output": "Red."},
    ],
}
MATHS = "\nPlease reason step by step, and put your final answer within \\boxed{}."
EXPERT = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests. You will NOT return anything except "
    "for the program"
)
FIRST = {
    "aime24": "Find {0}." + MATHS,
    "aime25": "Find 0." + MATHS,
    "livecodebench": f"{EXPERT}\n\n### Question:\nAdd two numbers.\n\n### Format: Write your code in the following format:"
    "\n```python\n# YOUR CODE HERE\n```\n\n### Answer: (use the provided format with backticks)",
    "swe_bench_lite": "Problem Statement:\nIt breaks.\nPlease fix the issue described above.",
    "alpaca": "Sum up.\n\nInput:\nOnce upon a time.",
}


def lines(records) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def ask(name: str, root: Path, **options):
    return load(SuiteConfig(name, root=str(root), **options))


def refusal(name: str, root: Path, **options) -> str:
    with pytest.raises(UserError) as caught:
        ask(name, root, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("ending", ["jsonl", "json"])
@pytest.mark.parametrize("name", HUB_SUITES)
def test_a_users_file_is_read_worded_and_remembered(name, ending, tmp_path):
    file = tmp_path / f"mine.{ending}"
    file.write_text(lines(RECORDS[name]) if ending == "jsonl" else json.dumps(RECORDS[name]))
    suite = ask(name, tmp_path, revision="abc", file=str(file))
    assert suite.rows[0].turns == (FIRST[name],) and suite.total_rows == len(RECORDS[name])
    assert len({row.id for row in suite.rows}) == suite.total_rows
    assert HUB_SUITES[name].repository in suite.source and suite.source.endswith("at revision abc")
    record = json.loads((tmp_path / f"{name}@abc.json").read_text())
    assert set(record) == {"name", "revision", "sha256", "rows", "files", "when"}
    assert (record["sha256"], record["rows"]) == (suite.checksum, len(RECORDS[name]))
    assert ask(name, tmp_path, revision="abc") == suite, "found again without its name"
    assert main(["verify", "--root", str(tmp_path)]) == 0


def test_starter_code_is_the_format():
    from harness.suites.wording import rows_of

    row = rows_of("livecodebench", RECORDS["livecodebench"])[1]
    assert "### Format: Use the following code structure:\n```python\nclass Solution:\n    def add(self):\n```" in row.turns[0]


def test_other_bytes_under_the_same_revision_are_refused(tmp_path, capsys):
    file, other = tmp_path / "mine.jsonl", tmp_path / "elsewhere.jsonl"
    file.write_text(lines(RECORDS["alpaca"]))
    ask("alpaca", tmp_path, revision="abc", file=str(file))
    other.write_text(lines(RECORDS["alpaca"][:1]))
    assert "other bytes" in refusal("alpaca", tmp_path, revision="abc", file=str(other))
    assert ask("alpaca", tmp_path, revision="abd", file=str(other)).total_rows == 1
    file.write_text(lines(RECORDS["alpaca"]) + "\n")
    assert "alpaca@abc.json" in refusal("alpaca", tmp_path, revision="abc")
    assert main(["verify", "--root", str(tmp_path)]) == 1 and "wrong" in capsys.readouterr().out
    file.unlink()
    assert main(["verify", "--root", str(tmp_path)]) == 0 and "gone" in capsys.readouterr().out
    copy = tmp_path / "copy.jsonl"
    copy.write_text(lines(RECORDS["alpaca"]))
    ask("alpaca", tmp_path, revision="abc", file=str(copy))
    assert ask("alpaca", tmp_path, revision="abc").total_rows == 2, "the same bytes at another place"


def test_several_files_are_one_suite_whose_checksum_is_of_all_bytes(tmp_path):
    one, two, both = (tmp_path / name for name in ("1.jsonl", "2.jsonl", "both.jsonl"))
    one.write_text(lines(RECORDS["livecodebench"][:1]))
    two.write_text(lines(RECORDS["livecodebench"][1:]))
    both.write_text(one.read_text() + two.read_text())
    suite = ask("livecodebench", tmp_path, revision="abc", file=f"{one}, {two}")
    assert suite == ask("livecodebench", tmp_path, revision="abc", file=str(both))


def test_rows_are_the_papers_shuffle_too(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(lines(RECORDS["aime24"]))
    small = ask("aime24", tmp_path, revision="abc", file=str(file), limit=5)
    assert small.rows == ask("aime24", tmp_path, revision="abc", limit=9).rows[:5]
    assert small.rows != ask("aime24", tmp_path, revision="abc").rows[:5]


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("mine.jsonl", "", "no rows"),
        ("mine.jsonl", '{"problem": "a"}\n{"problem": "b', "cannot be read"),
        ("mine.jsonl", '{"problem": "a"}\n{"question": "b"}\n', "row 2 has no text in 'problem'"),
        ("mine.jsonl", "[1]\n", "row 1"),
        ("mine.jsonl", '{"problem": 3}\n', "row 1"),
        ("mine.json", '{"problem": "a"}', "not a list"),
        ("mine.csv", "problem\na\n", "must end in"),
    ],
)
def test_files_of_another_kind_are_refused(name, text, words, tmp_path):
    (tmp_path / name).write_text(text)
    assert words in refusal("aime24", tmp_path, revision="abc", file=str(tmp_path / name))
    assert not (tmp_path / "aime24@abc.json").exists()


def test_a_row_that_is_there_twice_is_refused(tmp_path):
    (tmp_path / "mine.jsonl").write_text(2 * lines(RECORDS["swe_bench_lite"]))
    message = refusal("swe_bench_lite", tmp_path, revision="abc", file=str(tmp_path / "mine.jsonl"))
    assert "swe_bench_lite/a__b-1 is there twice" in message


def test_what_is_missing_is_said(tmp_path):
    assert "suite.revision=null" in refusal("aime24", tmp_path)
    assert "fetch aime24 --revision abc" in refusal("aime24", tmp_path, revision="abc")
    assert "No such file" in refusal("aime24", tmp_path, revision="abc", file=str(tmp_path / "no.jsonl"))
    assert "suite.file=x" in refusal("quick", tmp_path, file="x")
    for revision in ("../x", "a b", "/etc", "-x", "a/../b"):
        assert "revision" in refusal("aime24", tmp_path, revision=revision)


RECORD = {"name": "aime24", "revision": "abc", "sha256": "0" * 64, "rows": 1, "files": ["mine.jsonl"], "when": "now"}
JUNK = ({"revision": 7}, {"sha256": None}, {"files": [5]}, {"files": []}, {"files": "mine.jsonl"}, {"revision": "abd"}, {"more": 1})


@pytest.mark.parametrize("text", ["{", "[]", *(json.dumps({**RECORD, **junk}) for junk in JUNK)])
def test_a_damaged_record_is_refused(text, tmp_path, capsys):
    (tmp_path / "mine.jsonl").write_text(lines(RECORDS["aime24"]))
    (tmp_path / "aime24@abc.json").write_text(text)
    assert "remove it to start anew" in refusal("aime24", tmp_path, revision="abc")
    assert main(["verify", "--root", str(tmp_path)]) == 1
    assert main(["list", "--root", str(tmp_path)]) == 0


def publish(site: Path, name: str, revision: str, path: str, text: str) -> None:
    file = site / "datasets" / HUB_SUITES[name].repository / "resolve" / revision / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_fetch_stores_what_the_loader_finds_and_refuses_other_bytes_later(tmp_path, capsys):
    site, root = tmp_path / "site", tmp_path / "suites"
    mirror = ["--mirror", f"file://{site}", "--root", str(root)]
    for path in HUB_SUITES["livecodebench"].paths:
        publish(site, "livecodebench", "abc", path, lines(RECORDS["livecodebench"]))
    assert main(["fetch", "livecodebench", "--revision", "abc", *mirror]) == 0
    suite = ask("livecodebench", root, revision="abc")
    assert suite.total_rows == 12 and suite.checksum in capsys.readouterr().out
    assert main(["fetch", "livecodebench", "--revision", "abc", *mirror]) == 0
    assert "there already" in capsys.readouterr().out
    stored = sorted((root / "livecodebench@abc").iterdir())
    before = [file.read_bytes() for file in stored]
    stored[0].write_text("damaged")
    publish(site, "livecodebench", "abc", "test3.jsonl", lines(RECORDS["livecodebench"][:1]))
    assert main(["fetch", "livecodebench", "--revision", "abc", *mirror]) == 2
    assert "other bytes than before" in capsys.readouterr().err and stored[0].read_text() == "damaged"
    publish(site, "livecodebench", "abc", "test3.jsonl", lines(RECORDS["livecodebench"]))
    assert main(["fetch", "livecodebench", "--revision", "abc", *mirror]) == 0
    assert [file.read_bytes() for file in stored] == before
    assert sorted(p.name for p in root.iterdir()) == ["livecodebench@abc", "livecodebench@abc.json"]


def test_fetch_takes_another_file_of_the_repository(tmp_path):
    site, root = tmp_path / "site", tmp_path / "suites"
    publish(site, "aime25", "refs/pr/1", "data/aime.jsonl", lines(RECORDS["aime25"]))
    arguments = ["fetch", "aime25", "--revision", "refs/pr/1", "--file", "data/aime.jsonl"]
    status = main([*arguments, "--mirror", f"file://{site}", "--root", str(root)])
    assert status == 0 and ask("aime25", root, revision="refs/pr/1").total_rows == 30


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_without_pyarrow_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "mine.parquet").write_text("PAR1")
    assert "pyarrow" in refusal("aime24", tmp_path, revision="abc", file=str(tmp_path / "mine.parquet"))
    assert main(["fetch", "aime24", "--revision", "abc", "--root", str(tmp_path)]) == 2
    assert "pyarrow" in capsys.readouterr().err


def test_parquet_with_pyarrow_gives_the_same_rows(tmp_path):
    pytest.importorskip("pyarrow")
    import pandas

    file, plain = tmp_path / "mine.parquet", tmp_path / "mine.jsonl"
    pandas.DataFrame(RECORDS["alpaca"]).to_parquet(file)
    plain.write_text(lines(RECORDS["alpaca"]))
    suite = ask("alpaca", tmp_path, revision="abc", file=str(file))
    assert suite.rows == ask("alpaca", tmp_path, revision="abd", file=str(plain)).rows
