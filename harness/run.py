"""One run: from a checked plan to a folder with cells, figures, a table and a plot."""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from harness import environment, suites
from harness.engines.base import Engine
from harness.measuring import Schedule, measure, warm_up
from harness.metrics import decode_tokens_per_s
from harness.plot import draw
from harness.progress import progress
from harness.schemas import Plan, read
from harness.store import Cell, Store, finite
from harness.summary import headline, prompts_sha256, summarise
from harness.table import markdown, meanings, terminal_table

DONE, NOTHING_MEASURED, INTERRUPTED = 0, 1, 130


def run(config: DictConfig) -> int:
    """Measure what ``config`` describes and print the table; the exit status is what is returned."""
    plan = read(config)
    suite = suites.load(plan.suite)
    engine = _build(plan)
    measured = plan.measure
    arms = list(plan.arms)
    schedule = Schedule(suite.rows, arms, plan.sampling, measured.repetitions, measured.seed, plan.history_of)
    store = Store.create(measured.root, plan.label, datetime.now())
    store.write_text("config.yaml", OmegaConf.to_yaml(config, resolve=True))
    about_suite = suite.to_json() | {"history": plan.suite.history}
    seeds = {"sampling": plan.sampling.seed, "measure": measured.seed}
    store.write_json("environment.json", environment.describe(engine.settings(), about_suite, seeds))
    print(f"{schedule.cells} cells into {store.folder}", file=sys.stderr)
    interrupted = False
    try:
        warm_up(engine, schedule, measured.warmup)
        with progress(schedule.cells) as advance:
            for cell in measure(engine, schedule):
                store.append(cell)
                advance(_words(cell))
    except KeyboardInterrupt:
        interrupted = True
    return finish(store, plan, interrupted)


def finish(store: Store, plan: Plan, interrupted: bool) -> int:
    """Figures, table, plot and the last line, from the cells that the store holds."""
    cells = list(store.cells())
    summary = summarise(cells, list(plan.arms), plan.measure.baseline, plan.measure.seed)
    title = f"{plan.model.name} on {plan.engine.name}, suite {plan.suite.name}"
    notes = _notes(cells, interrupted)
    asked = {"history": plan.suite.history, "prompts_sha256": prompts_sha256(cells)}
    store.write_json("summary.json", {"interrupted": interrupted, **asked, "strategies": summary})
    store.write_text("table.md", markdown(summary, title, notes))
    draw(summary, {cell.key.prompt: cell.category for cell in cells}, title, store.folder / "plot.png")

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    console.print(terminal_table(summary, title, console.width))
    console.print()
    for line in [*meanings(), *notes, f"everything is in {store.folder}"]:
        console.print(line, markup=False, soft_wrap=True)
    print(json.dumps({"run": str(store.folder), "strategies": finite(headline(summary))}, ensure_ascii=False), flush=True)
    if interrupted:
        return INTERRUPTED
    return DONE if any(cell.decoded for cell in cells) else NOTHING_MEASURED


def _build(plan: Plan) -> Engine:
    """The engine, with its target and every strategy loaded: what can be wrong with them is found here."""
    config = plan.engine.copy()
    with open_dict(config):
        del config["name"]
    return instantiate(config, model=plan.model, strategies=plan.arms, _recursive_=False)


def _words(cell: Cell) -> str:
    name = f"{cell.key.prompt} {cell.key.strategy}"
    if cell.failure:
        return f"{name}: failed"
    speed = decode_tokens_per_s(cell.decoded)
    return name if speed is None else f"{name}: {speed:.0f} tokens/s"


def _notes(cells: list[Cell], interrupted: bool) -> list[str]:
    reasons = Counter(f"{cell.failure.kind}: {cell.failure.message}" for cell in cells if cell.failure)
    notes = [f"failed {count} times: {reason}" for reason, count in reasons.most_common(5)]
    if interrupted:
        notes.append("interrupted: the figures are of the cells that were finished")
    return notes
