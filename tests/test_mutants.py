"""The planted bugs of ``python -m benchmarks.mutants``: all can still be planted, and one goes the whole way."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.mutants import MUTANTS
from benchmarks.mutants.mutant import Stale
from benchmarks.mutants.table import page
from benchmarks.mutants.trial import ROOT, copy_tree, run_tests

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
SHORTENED = BY_NAME["identity-of-the-common-prefix"]
ITS_TEST = "tests/test_metrics.py::test_identical_share"


@pytest.mark.parametrize("name", BY_NAME)
def test_a_mutant_can_be_planted_in_the_code_as_it_is(name):
    mutant = BY_NAME[name]
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    planted = mutant.applied_to(text)
    assert planted != text and mutant.what and all((ROOT / test).is_file() for test in mutant.tests)
    compile(planted, mutant.file, "exec")


def test_names_are_unique_and_what_the_gate_must_notice_is_a_matter_of_drafts():
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert sum(mutant.gated for mutant in MUTANTS) >= 2


def test_a_mutant_whose_text_is_gone_or_ambiguous_is_an_error_that_names_it():
    for old, count in (("no such text", 0), ("decoded", 2)):
        with pytest.raises(Stale, match=rf"{SHORTENED.name}: its old text stands \d+ times in {SHORTENED.file}, not once"):
            replace(SHORTENED, old=old).applied_to((ROOT / SHORTENED.file).read_text())


def test_a_planted_bug_is_caught_and_the_working_tree_stays_as_it_is(tmp_path):
    before = (ROOT / SHORTENED.file).read_bytes()
    sound, planted = copy_tree(tmp_path / "sound"), copy_tree(tmp_path / "planted")
    SHORTENED.plant(planted)
    assert run_tests(sound, ITS_TEST) is None
    caught = run_tests(planted, ITS_TEST)
    assert caught.test == ITS_TEST and caught.assertion.startswith("assert metrics.identical_share(")
    assert Path(ROOT / "tests/test_metrics.py").read_text().splitlines()[caught.line - 1].strip() == caught.assertion
    assert (ROOT / SHORTENED.file).read_bytes() == before


def test_the_page_says_what_caught_what_and_what_the_gate_saw():
    figures = {"acceptance_length": 2.5, "identical": 1.0, "failed": 0}
    gate = {
        "exit_status": 1, "verdict": "regressed", "strategies": {"mtp": {**figures, "acceptance_length": 2.0}},
        "regressed": [{"strategy": "mtp", "name": "rounds"}],
    }  # fmt: skip
    caught = {"test": "tests/test_x.py::test_y[a|b]", "line": 7, "assertion": "assert a | b", "said": "no"}
    mutants = [
        {"name": "bad", "what": "a bug", "file": "f.py", "caught": caught, "gate": gate},
        {"name": "worse", "what": "another", "file": "f.py", "caught": None, "gate": None},
    ]
    text = page({"mutants": mutants, "gate": {"options": ["suite.limit=4"], "sound": {"mtp": figures}}})
    assert "2 mutants, 1 caught by a test" in text and r"`tests/test_x.py::test_y[a\|b]` | 7: `assert a \| b` |" in text
    assert "| worse | another | `f.py` | **nothing** |" in text and "python -m harness suite.limit=4" in text
    assert "| bad | mtp 2.50 → 2.00 | all | regressed, exit 1 | mtp rounds |" in text


def test_a_tree_that_cannot_be_imported_is_no_bug_that_a_test_caught(tmp_path):
    root = copy_tree(tmp_path / "broken")
    (root / SHORTENED.file).write_text("def\n")
    with pytest.raises(RuntimeError, match="ended with status|an error outside a test"):
        run_tests(root, ITS_TEST)
