"""Does a run's folder still hold the cells that its summary was made of?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import UserError
from harness.store import CELLS, Cell, Store
from harness.summary import prompts_sha256


def check_whole(store: Store, cells: Sequence[Cell], summary: Mapping[str, Any] | None) -> None:
    """Raise ``UserError`` when a finished run lacks cells, or has others. One that did not end has no summary to say so."""
    if summary is None or summary.get("interrupted"):
        return
    try:
        counted = {name: figures["cells"] for name, figures in summary["strategies"].items() if figures["cells"]}
        asked = summary["prompts_sha256"]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{store.folder / 'summary.json'}: is no summary of this version; resume={store.folder} writes it anew") from error
    found = Counter(cell.key.strategy for cell in cells)
    if found != counted or prompts_sha256(cells) != asked:
        held = f"holds {_words(found)}, and summary.json was made of {_words(counted)}" if found != counted else "was asked other prompts"
        raise UserError(f"{store.folder / CELLS}: {held}; put it back, or resume={store.folder} measures what is missing")


def _words(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{count} cells of {name}" for name, count in sorted(counted.items())) or "no cell"
