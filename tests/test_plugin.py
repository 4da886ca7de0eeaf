"""A strategy of a package outside this repository runs on the embedded engine by its search path alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What docs/strategies.md shows is what is run here.
PAGE = (ROOT / "docs" / "strategies.md").read_text()
CONFIGURATION = PAGE.split("```yaml\n")[1].split("```")[0]
PACKAGE = PAGE.split("```python\n")[1].split("```")[0]


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
