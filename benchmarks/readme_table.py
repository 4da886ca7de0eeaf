"""Put a run's table and plot into README.md: ``python benchmarks/readme_table.py results/runs/FOLDER``.

The figures in the README are copied by this script from a stored run, never typed. The run's small files go to
``docs/runs/`` so that the figures can be traced.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = ("config.yaml", "environment.json", "summary.json", "table.md", "plot.png")


def main(run: Path) -> None:
    kept = ROOT / "docs" / "runs" / "quick"
    kept.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        shutil.copyfile(run / name, kept / name)
    lines = (run / "table.md").read_text().strip().splitlines()
    # The README has a heading of its own, and says at more length what a column means.
    table = "\n".join(line for line in lines if not line.startswith(("# ", "- **")))
    table = re.sub(r"\n{3,}", "\n\n", table).strip()
    block = f"<!-- table -->\n{table}\n\n![speedup and acceptance](docs/runs/quick/plot.png)\n<!-- /table -->"
    readme = ROOT / "README.md"
    text, found = re.subn(r"<!-- table -->.*?<!-- /table -->", lambda _: block, readme.read_text(), flags=re.S)
    if not found:
        sys.exit("README.md has no <!-- table --> … <!-- /table --> block")
    readme.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
