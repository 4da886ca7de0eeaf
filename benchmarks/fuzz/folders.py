"""Damaged folders, given to everything that reads one, and whether what they say of it can be true."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.fuzz.calls import Answer, call, wrong_form
from benchmarks.fuzz.damages import Damage
from benchmarks.kill_resume import outputs, without_times
from harness.store import CELLS, Store

FAKE = ("engine._target_=fake_engine.FakeEngine", "model=local", "model.path=x", "measure.warmup=0")
SOUND = ("suite.limit=2", "sampling.max_new_tokens=6", "measure.repetitions=2")
OTHER = ("suite.limit=3", "sampling.max_new_tokens=5", "strategy=mtp", "+engine.differs=mtp")
BY_THE_RULES = ("unreadable", "cannot be written")


class Folders:
    """A sound run, the same one killed after five of its eight cells, and another run's; copies of the first two are damaged.

    The engine behind them is made up (``tests/fake_engine.py``), its times too, so that every figure is known.
    """

    def __init__(self, work: Path) -> None:
        self.work = work
        self.sound, self.other = self._made("sound", *SOUND), self._made("other", *OTHER)
        self.killed = shutil.copytree(self.sound, work / "killed")
        for name in ("summary.json", "table.md", "plot.png"):
            (self.killed / name).unlink()
        (self.killed / CELLS).write_bytes(b"".join((self.sound / CELLS).read_bytes().splitlines(keepends=True)[:5]))
        self._loaded = json.loads(call("load", [str(self.sound)], work).out)

    def _made(self, name: str, *options: str) -> Path:
        call("harness", [*FAKE, *options, f"measure.root={self.work / name}"], self.work)
        (folder,) = (self.work / name).iterdir()
        return folder

    def damaged(self, damage: Damage, base: Path) -> Path:
        """A fresh copy of ``base`` with ``damage`` done to it."""
        folder = self.work / "run"
        if folder.is_dir():
            os.chmod(folder, 0o755)
            shutil.rmtree(folder)
        folder.unlink(missing_ok=True)
        shutil.copytree(base, folder)
        damage.done(folder, self.other, random.Random(damage.name))
        return folder

    def tried(self, damage: Damage, kinds: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """One record for each kind of call: ``load``, ``gate`` (as candidate), ``gated`` (as baseline), ``resume``, ``report``."""
        for kind in kinds:
            base = self.killed if kind == "resume" else self.sound
            try:
                folder = self.damaged(damage, base)
            except FileNotFoundError:  # a killed run has no summary to damage
                folder = self.damaged(damage, self.sound)
            arguments = {
                "load": [str(folder)],
                "gate": [str(folder), "--against", str(self.sound)],
                "gated": [str(self.sound), "--against", str(folder)],
                "resume": [f"resume={folder}"],
                "report": [str(folder), "--output", str(self.work / "report")],
            }[kind]
            by_the_rules = any(word in damage.name for word in BY_THE_RULES)
            answer = call("gate" if kind == "gated" else kind, arguments, self.work, by_the_rules)
            problems = [form] if (form := wrong_form(answer)) else []
            if not problems and not answer.refused and not damage.foreign:
                problems = list(self._untrue(kind, answer, folder))
            yield {"damage": damage.name, "kind": kind, "answer": answer, "problems": problems}

    def _untrue(self, kind: str, answer: Answer, folder: Path) -> Iterator[str]:
        """What a call says of a damaged folder must be what the sound one says, or of a part of its cells."""
        if kind == "load":
            found = json.loads(answer.out)
            whole = Counter(self._loaded["cells"])
            if Counter(found["cells"]) - whole:
                yield "cells that were never measured"
            if found["summary"] and (found["summary"] != self._loaded["summary"] or Counter(found["cells"]) != whole):
                yield "a summary that is not of these cells"
        if kind in ("gate", "gated") and answer.status == 1:
            yield "regressed, though nothing did"
        if kind == "resume":
            os.chmod(folder, 0o755)
            mine, right = Store(folder), Store(self.sound)
            if outputs(mine) != outputs(right):
                yield "cells or tokens that an undisturbed run does not have"
            if without_times(mine.read_json("summary.json")) != without_times(right.read_json("summary.json")):
                yield "a summary that an undisturbed run does not have"
