"""One call of a command in a process of its own, and whether its answer is one that a user may get."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stored import ROOT

LIMIT_S = 240
# Says what was read as hashes: one for each cell, one for the summary.
LOAD = """\
import hashlib, json, sys, harness
from harness.errors import UserError
try:
    run = harness.load(sys.argv[1])
except UserError as error:
    sys.exit(f"harness: {error}")
def digest(data):
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:12]
rows = [digest(row) for row in run.cells.drop(columns=["order"]).to_dict("records")]
print(json.dumps({"cells": sorted(rows), "rounds": len(run.rounds), "summary": run.summary and digest(run.summary)}))
"""
COMMANDS = {
    "harness": ("-m", "harness"),
    "resume": ("-m", "harness"),
    "gate": ("-m", "harness.gate"),
    "report": ("-m", "harness.report"),
    "load": ("-c", LOAD),
}
# With this a run begins to measure; before it, an error is all that there is.
_BEGUN = re.compile(r"^\d+ cells into ", re.MULTILINE)
_SPOKEN = re.compile(r"(harness|gate|report): ")


@dataclass(frozen=True)
class Answer:
    status: int | None
    out: str
    err: str

    @property
    def refused(self) -> bool:
        """Ended as wrong usage or unreadable input does."""
        return self.status not in (0, None) and not self.out.strip()

    @property
    def line(self) -> str:
        """The line that says why."""
        return next((line for line in self.err.splitlines() if _SPOKEN.match(line)), "")


def call(kind: str, arguments: list[str], folder: Path, by_the_rules: bool = False) -> Answer:
    """Run one of ``COMMANDS`` in ``folder``; a ``status`` of ``None`` is a call that did not end.

    ``by_the_rules``: files that may not be read are not read, even where this process is root's.
    """
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    variables = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    command = [sys.executable, *COMMANDS[kind], *arguments]
    options = {"preexec_fn": _give_up_rights} if by_the_rules else {}
    try:
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S, **options)
    except subprocess.TimeoutExpired as late:
        return Answer(None, str(late.stdout or ""), str(late.stderr or ""))
    return Answer(done.returncode, done.stdout, done.stderr)


def _give_up_rights() -> None:
    """Drop what lets root read any file (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH) from what the next program may have."""
    import ctypes

    drop = 24  # PR_CAPBSET_DROP
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(drop, capability, 0, 0, 0)


def wrong_form(answer: Answer) -> str | None:
    """What is wrong with how a call ended, whatever it was asked; ``None``: it ran cleanly or was refused in one line."""
    if answer.status is None:
        return f"did not end within {LIMIT_S} s"
    if answer.status < 0:
        return f"was ended by signal {-answer.status}"
    if "Traceback (most recent call last)" in answer.out + answer.err:
        return "traceback"
    if not answer.refused:
        return None
    lines = answer.err.splitlines()
    if _BEGUN.search(answer.err):
        lines = [line for line in lines if _SPOKEN.match(line)]
    if len(lines) != 1:
        return f"refused in {len(lines)} lines"
    return None if answer.line else "refused without saying who speaks"
