"""Acceptance of several stored runs in one table: ``python benchmarks/acceptance_table.py results/h200/acceptance``.

Every folder inside holds a run's config.yaml, environment.json and summary.json; the table goes to README.md beside them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from omegaconf import OmegaConf

HEAD = """# Acceptance by decoding

{protocol}. Every folder holds one run's configuration, environment and summary; this page was written from them by
`benchmarks/acceptance_table.py`.

| suite | strategy | tokens a round | rounds | answers | identical to the baseline's |
| --- | --- | ---: | ---: | ---: | ---: |
"""


def main(folder: Path) -> None:
    rows, protocols = [], set()
    for summary in sorted(folder.glob("*/summary.json")):
        config = OmegaConf.load(summary.parent / "config.yaml")
        machine = json.loads((summary.parent / "environment.json").read_text())
        device = machine["gpus"][0]["name"] if machine["gpus"] else machine["cpu"]["model"]
        protocols.add(
            f"{config.model.name} in {config.model.dtype} on the {config.engine.name} engine, {device}: greedy, first turns of "
            f"{config.suite.limit} prompts a suite, at most\n{config.sampling.max_new_tokens} new tokens, rounds pooled, "
            "committed tokens counted (docs/metrics.md)"
        )
        for name, found in json.loads(summary.read_text())["strategies"].items():
            if name != config.measure.baseline:
                budget = f", {config.strategy.budget} nodes" if "budget" in config.strategy else ""
                rows.append(
                    f"| {config.suite.name} | {name}{budget} | {found['acceptance_length']:.2f} | {found['rounds']} "
                    f"| {found['cells']} | {found['identical']:.0%} |"
                )
    if len(protocols) != 1:
        sys.exit(f"{folder}: {len(protocols)} protocols; one table needs runs of one")
    (folder / "README.md").write_text(HEAD.format(protocol=protocols.pop()) + "\n".join(sorted(rows)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
