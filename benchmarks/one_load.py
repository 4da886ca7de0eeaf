"""Several runs with one engine, loaded once: on a GPU loading and compiling take longer than measuring.

    python -m benchmarks.one_load [KEY=VALUE ...] -- KEY=VALUE ... -- KEY=VALUE ... [-- ...]
    python -m benchmarks.one_load suite=three suite.limit=32 suite.max_turns=1 -- measure.batch=1 -- measure.batch=8 -- measure.batch=32

What stands before the first ``--`` goes for every run, what follows each is one run's own. Each leaves a folder as ``python -m harness``
does. Runs must share engine, model and strategies with all their options; suite, sampling and measure may differ. ``python -m harness.report
FOLDER ... --output FOLDER`` makes one page of them, batches and budgets side by side. Unlike jobs of a sweep, later runs find kernels
compiled and graphs captured by earlier ones, none of which is in any figure, and the costs behind ``strategy.budget=auto`` lie with the run
that measured them. The last line on stdout is one JSON object: the runs'
folders and statuses, and where batches differ ``crossings``, as a sweep has them. Exit status: the highest of the runs'.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

import harness  # noqa: F401  before anything starts threads
from benchmarks.planned import configuration
from harness.companions import add_companions
from harness.errors import UserError
from harness.finish import INTERRUPTED
from harness.run import build_engine, run
from harness.schemas import read

SHARED = ("engine", "model", "strategy", "arms")


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--help" in arguments:
        print(__doc__)
        return 0
    common, *own = split(arguments)
    try:
        if not own:
            raise UserError("no run is asked for; give each its keys behind a --")
        configurations = alike(common, own)
        engine = build_engine(read(configurations[0]))
        found = []
        try:
            for config in configurations:
                root = Path(config.measure.root)
                before = set(root.glob("*/"))
                status = run(config, engine)
                (folder,) = set(root.glob("*/")) - before
                found.append({"run": str(folder), "status": status})
                if status == INTERRUPTED:  # whoever stops one wants no other
                    break
        finally:
            getattr(engine, "close", lambda: None)()
    except UserError as error:
        print(f"one_load: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"runs": found, "crossings": crossings([each["run"] for each in found])}))
    return max(each["status"] for each in found)


def alike(common: Sequence[str], own: Sequence[Sequence[str]]) -> list[DictConfig]:
    """The runs' configurations, of keys of all and keys of each; ``UserError`` where one needs another engine than the first."""
    configurations = [configuration([*common, *each]) for each in own]
    for config, each in zip(configurations, own, strict=True):
        read(config)
        add_companions(config)
        if wrong := [group for group in SHARED if config[group] != configurations[0][group]]:
            raise UserError(f"{' '.join(each)}: another {wrong[0]} than the first run's needs an engine of its own; call it by itself")
    return configurations


def split(arguments: Sequence[str]) -> list[list[str]]:
    """The lists between the ``--``."""
    parts: list[list[str]] = [[]]
    for argument in arguments:
        if argument == "--":
            parts.append([])
        else:
            parts[-1].append(argument)
    return parts


def crossings(folders: Sequence[str]) -> list[dict]:
    """At which batch each strategy's aggregate speedup crosses 1, said on standard error too."""
    from harness.report import batches
    from harness.report.subject import read as read_runs

    subject = read_runs(list(folders))
    for sentence in batches.sentences(subject):
        print(sentence, file=sys.stderr)
    return batches.crossings(subject)


if __name__ == "__main__":
    sys.exit(main())
