"""The end of a run, whole or not: figures, table, plot and the last line, from what the store holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console

from harness.losslessness import LOUD, Losslessness, Setting, losslessness
from harness.plot import draw
from harness.schemas import Plan
from harness.store import CONTROL, Cell, Key, Store, finite
from harness.summary import headline, prompts_sha256, summarise
from harness.table import markdown, meanings, terminal_table

DONE, NOTHING_MEASURED, INTERRUPTED = 0, 1, 130


def finish(
    store: Store, plan: Plan, interrupted: bool, margins: Mapping[Key, float] | None = None, remarks: Sequence[str] = ()
) -> int:
    """Write and print what was measured; the exit status is what is returned. ``remarks`` go with the table."""
    cells = list(store.cells())
    settings = (store.read_json("environment.json") or {}).get("engine", {})
    summary = summarise(cells, list(plan.arms), plan.measure.baseline, plan.measure.seed, settings)
    title = f"{plan.model.name} on {plan.engine.name}, suite {plan.suite.name}"
    lossless = None
    if setting := setting_of(plan, settings):
        lossless = losslessness(cells, list(store.cells(CONTROL)), setting, margins)
    notes = [*_notes(cells, lossless, interrupted, store), *remarks]
    asked = {"history": plan.suite.history, "prompts_sha256": prompts_sha256(cells)}
    about = {"interrupted": interrupted, **asked, "losslessness": lossless and lossless.to_json()}
    store.write_json("summary.json", {**about, "strategies": summary})
    store.write_text("table.md", markdown(summary, title, notes))
    draw(summary, {cell.key.prompt: cell.category for cell in cells}, title, store.folder / "plot.png")

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    console.print(terminal_table(summary, title, console.width))
    console.print()
    for line in [*meanings(), "", *notes, f"everything is in {store.folder}"]:
        console.print(line, markup=False, soft_wrap=True, style="bold red" if line.startswith(LOUD) else None)
    print(json.dumps({"run": str(store.folder), "strategies": finite(headline(summary))}, ensure_ascii=False), flush=True)
    if interrupted:
        return INTERRUPTED
    return DONE if any(cell.decoded for cell in cells) else NOTHING_MEASURED


def setting_of(plan: Plan, settings: Mapping) -> Setting | None:
    """What the losslessness report needs to know of a run; ``None`` for a run without a baseline."""
    if plan.measure.baseline is None:
        return None
    dtype = str(settings.get("dtype", "unknown dtype")).removeprefix("torch.")
    greedy = plan.sampling.temperature == 0
    return Setting(plan.measure.baseline, list(plan.arms), dtype, greedy, plan.measure.repetitions)


def _notes(cells: list[Cell], lossless: Losslessness | None, interrupted: bool, store: Store) -> list[str]:
    notes = lossless.lines() if lossless else []
    reasons = Counter(f"{cell.failure.kind}: {cell.failure.message}" for cell in cells if cell.failure)
    notes += [f"failed {count} times: {reason}" for reason, count in reasons.most_common(5)]
    held = sum(cell.throttled is True for cell in cells)
    if held:
        notes.append(f"{held} of {len(cells)} cells were measured while the machine held its clocks back")
    if interrupted:
        notes.append("interrupted: the figures are of the cells that were finished")
        notes.append(f"finish it with: python -m harness resume={store.folder}")
    return notes
