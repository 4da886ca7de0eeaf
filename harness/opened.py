"""A run's folder, opened: every file is there and fits the others, or one line says what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness.errors import UserError, one_line
from harness.resume import argument, check_config, read_config
from harness.store import CELLS, SUMMARY, Cell, Store, holds
from harness.summary import prompts_sha256
from harness.sweep.store import is_sweep


@dataclass(frozen=True)
class Opened:
    """``config`` is resolved. ``summary`` is ``None`` for a run that did not end; then ``cells`` are those that it finished."""

    store: Store
    config: dict[str, Any]
    environment: dict[str, Any]
    cells: tuple[Cell, ...]
    summary: dict[str, Any] | None


def open_run(folder: Path) -> Opened:
    """What a run left. Raises ``UserError`` for a folder that is damaged or none of a run."""
    if is_sweep(folder):
        raise UserError(f"{folder}: is a sweep's folder; give one of its runs, {folder}/jobs/*/*")
    if not holds(folder, "config.yaml"):
        why = "it holds no config.yaml" if folder.is_dir() else "there is no such folder"
        raise UserError(f"{folder}: is no run's folder: {why}; give one such as results/runs/20260131-120000-...")
    store = Store(folder)
    environment = store.read_json("environment.json")
    if environment is None:
        raise UserError(f"{folder}: holds no environment.json, so its run was killed before it measured anything; run anew")
    check_config(folder, environment)
    config = _plain(folder / "config.yaml")
    cells, summary = tuple(store.cells()), store.read_json(SUMMARY)
    _check_whole(store, cells, summary)
    return Opened(store, config, environment, cells, summary)


def _plain(path: Path) -> dict[str, Any]:
    try:
        return OmegaConf.to_container(read_config(path), resolve=True)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: is damaged ({one_line(error)[:120]}); put it back, or run anew") from error


def _check_whole(store: Store, cells: Sequence[Cell], summary: Mapping[str, Any] | None) -> None:
    """Raise ``UserError`` when a finished run lacks cells, or has others. One that did not end has no summary to say so."""
    if summary is None or summary.get("interrupted"):
        return
    anew = f"{argument(store.folder)} writes it anew"
    try:
        counted = {name: figures["cells"] for name, figures in summary["strategies"].items() if figures["cells"]}
        asked = summary["prompts_sha256"]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{store.folder / SUMMARY}: is no summary of this version; {anew}") from error
    found = Counter(cell.key.strategy for cell in cells)
    if found != counted or prompts_sha256(cells) != asked:
        held = f"holds {_words(found)}, and summary.json was made of {_words(counted)}" if found != counted else "was asked other prompts"
        missing = f"put it back, or {argument(store.folder)} measures what is missing"
        raise UserError(f"{store.folder / CELLS}: {held}; {missing}")


def _words(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{count} cells of {name}" for name, count in sorted(counted.items())) or "no cell"
