"""A strategy of a package outside this repository runs on the embedded engine by its search path alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CONFIGURATION = """\
name: mine
_target_: mypackage.build
longest: 4
"""
PACKAGE = '''\
"""Drafts what followed the last time the newest two tokens stood together."""

import torch

from strategies.base import DraftTree, Proposer


class Lookup(Proposer):
    def __init__(self, longest):
        self.longest, self.max_rows = longest, longest + 1

    def reset(self, batch, capacity):
        self.text = []

    def commit(self, tokens, features):
        self.text += tokens[0].tolist()

    def propose(self, bonus, max_depth):
        text = [*self.text, int(bonus)]
        for start in range(len(text) - 3, -1, -1):
            if text[start : start + 2] == text[-2:]:
                drafted = text[start + 2 :][: min(self.longest, max_depth)]
                return DraftTree.chain(bonus, bonus.new_tensor([drafted]), torch.zeros(1, len(drafted)))
        return DraftTree.root(bonus)


def build(target, name, longest):
    assert target.vocab_size == 320
    return Lookup(longest)
'''


def test_a_strategy_of_another_package_decodes_on_the_torch_engine(tiny_models, tmp_path):
    package = tmp_path / "packages" / "mypackage"
    (package / "conf" / "strategy").mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    (package / "conf" / "__init__.py").write_text("")
    (package / "conf" / "strategy" / "mine.yaml").write_text(CONFIGURATION)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    command = [
        sys.executable, "-m", "harness", "strategy=mine", "hydra.searchpath=[pkg://mypackage.conf]", "model=local",
        f"model.path={tiny_models['qwen3'].folder}", "model.dtype=float32", "suite.limit=1", "sampling.max_new_tokens=8",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(package.parent)])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    mine, baseline = result["strategies"]["mine"], result["strategies"]["baseline"]
    assert mine["identical"] == 1 and baseline["rounds"] == 7 and 1 <= mine["rounds"] <= 7
    cells = [json.loads(line) for line in (folder / result["run"] / "cells.jsonl").read_text().splitlines()]
    assert len(cells) == 2
