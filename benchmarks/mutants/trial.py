"""A temporary copy of the tree, a bug planted in it, and the tests that are run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.stored import ROOT, nowhere

COPIED = ("harness", "strategies", "kernels", "conf", "notebooks", "tests", "benchmarks", "docs", "results/published", ".github")
FILES = ("pyproject.toml", "README.md")
LIMIT_S = 600
# A line of a test that a traceback goes through, as pytest writes it and as Python does for a group of exceptions.
_PLACE = re.compile(r'(tests/\w+\.py)(?::|", line )(\d+)')
_SECOND_OF_A_GROUP = "- 2 -"


@dataclass(frozen=True)
class Caught:
    """The test that failed, the line in it at which it did, that line's text, and what was said."""

    test: str
    line: int
    assertion: str
    said: str


def copy_tree(folder: Path, source: Path = ROOT) -> Path:
    """What the tests need of the tree at ``source``, in ``folder``."""
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", "runs")
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name, ignore=skipped)
    for name in FILES:
        shutil.copy2(source / name, folder / name)
    return folder


def python(root: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """``python ARGUMENTS`` with the modules of the tree at ``root``."""
    variables = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd or root, env=variables, capture_output=True, text=True, timeout=LIMIT_S)


def run_tests(root: Path, *tests: str) -> Caught | None:
    """Run ``tests`` (files or test ids) in the tree at ``root`` up to the first failure; ``None``: all passed.

    Raises ``RuntimeError`` when pytest could not run them: a tree that cannot be imported is no bug that a test caught.
    """
    report = root / "junit.xml"
    options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--junitxml={report}"]
    done = python(root, "-m", "pytest", *options, *tests)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest {' '.join(tests)} ended with status {done.returncode}: {done.stdout[-600:]}{done.stderr[-600:]}")
    cases = ElementTree.parse(report).iter("testcase")
    failed = [(case, found) for case in cases if (found := case.find("failure")) is not None]
    if bool(failed) != bool(done.returncode):
        raise RuntimeError(f"pytest {' '.join(tests)}: an error outside a test: {done.stdout[-600:]}")
    return _caught(root, *failed[0]) if failed else None


def _caught(root: Path, case: ElementTree.Element, failure: ElementTree.Element) -> Caught:
    test = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
    file, line = _PLACE.findall((failure.text or "").split(_SECOND_OF_A_GROUP)[0])[-1]
    assertion = (root / file).read_text(encoding="utf-8").splitlines()[int(line) - 1].strip()
    said = " ".join(nowhere((failure.get("message") or "").replace(f"{root}{os.sep}", ""), root).split())
    return Caught(test, int(line), assertion, re.sub(r"0x[0-9a-f]{6,}", "0x...", said)[:300])
