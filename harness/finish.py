"""The end of a run, whole or not: figures, table, plot and the last line, from what the store holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from harness import resume
from harness.losslessness import LOUD, Losslessness, Setting, losslessness
from harness.plot import draw
from harness.schemas import Plan
from harness.store import CONTROL, PLOT, SUMMARY, TABLE, Cell, Key, Store, finite
from harness.summary import headline, prompts_sha256, summarise
from harness.table import BATCH_COLUMNS, CATEGORY_COLUMNS, COLUMNS, LOAD_COLUMNS, Further, by_category, markdown, meanings, terminal_table

DONE, NOTHING_MEASURED, INTERRUPTED = 0, 1, 130


def finish(
    store: Store, plan: Plan, interrupted: bool, margins: Mapping[Key, float] | None = None, remarks: Sequence[str] = ()
) -> int:
    """Write and print what was measured; the exit status is what is returned. ``remarks`` go with the table."""
    cells = list(store.cells())
    summary = figures_of(store, plan, cells)
    lossless = None
    if setting := setting_of(plan, _settings(store)):
        lossless = losslessness(cells, list(store.cells(CONTROL)), setting, margins)
    costs = store.costs()
    notes = [*_notes(cells, lossless, interrupted, store), *_too_few(cells, plan.measure.batch), *_sizes(summary, costs), *remarks]
    asked = {"history": plan.suite.history, "prompts_sha256": prompts_sha256(cells)}
    about = {"interrupted": interrupted, **asked, "order": plan.measure.order}
    about |= {"losslessness": lossless and lossless.to_json(), "notes": notes}
    whole = finite({**about, "costs": costs, "strategies": summary})
    store.write_json(SUMMARY, whole)
    store.write_text(TABLE, markdown(summary, _title(plan), notes, further=_further(plan, summary)))
    store.write(PLOT, draw(summary, {cell.key.prompt: cell.category for cell in cells}, _title(plan)))
    return show(store, plan, whole)


def figures_of(store: Store, plan: Plan, cells: Sequence[Cell]) -> dict[str, Any]:
    """Every strategy's figures, as ``summary.json`` holds them."""
    blocks = list(store.blocks()) if plan.measure.load else None
    return finite(summarise(cells, list(plan.arms), plan.measure.baseline, plan.measure.seed, _settings(store), blocks))


def _settings(store: Store) -> Mapping[str, Any]:
    return (store.read_json("environment.json") or {}).get("engine", {})


def show(store: Store, plan: Plan, summary: Mapping[str, Any]) -> int:
    """Print what ``summary.json`` holds, its headline last as one JSON object; the exit status is what is returned."""
    figures, interrupted = summary["strategies"], summary["interrupted"]
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    console.print(terminal_table(figures, _title(plan), console.width))
    shown = COLUMNS
    for other in _further(plan, figures):
        shown += other.columns
        rows = figures if other.rows is None else other.rows
        console.print(terminal_table(rows, f"\n{other.title}", console.width, other.first, other.columns))
    console.print()
    for line in [*meanings(shown), "", *summary.get("notes", []), f"everything is in {store.folder}"]:
        console.print(line, markup=False, soft_wrap=True, style="bold red" if line.startswith(LOUD) else None)
    last = {"run": str(store.folder), "interrupted": interrupted, "strategies": headline(figures)}
    print(json.dumps(last, ensure_ascii=False), flush=True)
    if interrupted:
        return INTERRUPTED
    return DONE if any(found["cells"] > found["failed"] for found in figures.values()) else NOTHING_MEASURED


def _further(plan: Plan, figures: Mapping[str, Any]) -> list[Further]:
    found = []
    if plan.measure.load:
        found.append(Further(f"Under load: {plan.measure.order}", LOAD_COLUMNS))
    elif plan.measure.batch > 1:
        found.append(Further(f"In batches: {plan.measure.order}", BATCH_COLUMNS))
    if plan.suite.of:
        found.append(Further("Each suite by itself", CATEGORY_COLUMNS, by_category(figures), "suite · strategy"))
    return found


def _title(plan: Plan) -> str:
    return f"{plan.model.name} on {plan.engine.name}, suite {plan.suite.name}"


def setting_of(plan: Plan, settings: Mapping) -> Setting | None:
    """What the losslessness report needs to know of a run; ``None`` for a run without a baseline."""
    if plan.measure.baseline is None:
        return None
    dtype = str(settings.get("dtype", "unknown dtype")).removeprefix("torch.")
    greedy = plan.sampling.temperature == 0
    return Setting(plan.measure.baseline, list(plan.arms), dtype, greedy, plan.measure.repetitions)


def _too_few(cells: Sequence[Cell], batch: int) -> list[str]:
    most = max((cell.batch_size for cell in cells if cell.batch_size), default=batch)
    return [f"measure.batch={batch}: the suite has too few prompts for it; the largest batches held {most}"] if most < batch else []


def _sizes(figures: Mapping[str, Any], costs: Sequence[Mapping[str, Any]]) -> list[str]:
    """How large the trees were of every strategy that went by measured costs."""
    return [
        f"{name}: {mean:.1f} nodes a round, picked by what a round costs here: {words}"
        for name in dict.fromkeys(table["strategy"] for table in costs)
        if (mean := figures[name]["mean_round"].get("proposed")) is not None
        if (words := _shares(figures[name]["proposed_histogram"]))
    ]


def _shares(histogram: Mapping[str, int]) -> str:
    total = sum(histogram.values())
    return ", ".join(f"{nodes} in {rounds / total:.0%}" for nodes, rounds in histogram.items())


def _notes(cells: list[Cell], lossless: Losslessness | None, interrupted: bool, store: Store) -> list[str]:
    notes = lossless.lines() if lossless else []
    reasons = Counter(f"{cell.failure.kind}: {cell.failure.message}" for cell in cells if cell.failure)
    notes += [f"failed {count} times: {reason}" for reason, count in reasons.most_common(5)]
    held = sum(cell.throttled is True for cell in cells)
    if held:
        notes.append(f"{held} of {len(cells)} cells were measured while the machine held its clocks back")
    if interrupted:
        notes.append("interrupted: the figures are of the cells that were finished")
        notes.append(f"finish it with: {resume.command(store.folder)}")
    return notes
