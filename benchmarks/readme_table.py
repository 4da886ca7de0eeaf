"""Put a run's table and plot into README.md: ``python benchmarks/readme_table.py results/runs/FOLDER``.

The figures in the README are copied by this script from a stored run, never typed. The whole run goes to ``docs/runs/quick``
(variables that name a folder of the machine without it), so that the figures can be traced and the report made again.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.stored import fill  # noqa: E402
from harness.report.environment import no_folder  # noqa: E402
from harness.store import Store  # noqa: E402


def main(run: Path) -> None:
    kept = ROOT / "docs" / "runs" / "quick"
    if run.resolve() != kept:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(run, kept)
    _without_folders(Store(kept))
    lines = (run / "table.md").read_text().strip().splitlines()
    # The README has a heading of its own, and says at more length what a column means.
    table = "\n".join(line for line in lines if not line.startswith(("# ", "- **")))
    table = re.sub(r"\n{3,}", "\n\n", table).strip()
    fill(ROOT / "README.md", "table", f"{table}\n\n![speedup and acceptance](docs/runs/quick/plot.png)")


def _without_folders(store: Store) -> None:
    environment = store.read_json("environment.json")
    variables = environment["variables"]
    environment["variables"] = {name: no_folder(value) for name, value in variables.items()}
    store.write_json("environment.json", environment)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
