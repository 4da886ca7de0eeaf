"""Which measurements may be joined by a line: the very same prompts, and all else equal but what the line is drawn against."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from harness.report.subject import Reported

Point = tuple[Reported, str]
Curve = tuple[str, list[Point]]


def by_budget(points: list[Point]) -> list[Curve]:
    """Lines against the node budget, with their names. An arm of another name is the same strategy with another budget."""
    lines = _alike(points, lambda run, name: [{**run.arms[name], "name": None, "budget": None}, run.batch, run.load])
    return [(_named(line, line[0][0].plugin(line[0][1])), line) for line in lines]


def by_batch(points: list[Point]) -> list[Curve]:
    """Lines against the batch, with their names."""
    return [(_named(line, line[0][1]), line) for line in _alike(points, lambda run, name: [name, run.arms[name]])]


def _alike(points: list[Point], fixed: Callable[[Reported, str], list[Any]]) -> list[list[Point]]:
    found: dict[str, list[Point]] = {}
    for run, name in points:
        settings = [run.config[group] for group in ("engine", "model", "sampling")]
        live = [run.environment["engine"].get(setting) for setting in ("dtype", "device")]
        same = [*fixed(run, name), settings, live, run.figures[name]["prompts_sha256"]]
        found.setdefault(json.dumps(same, sort_keys=True, default=str), []).append((run, name))
    return list(found.values())


def _named(line: list[Point], strategy: str) -> str:
    letters, config = "".join(dict.fromkeys(run.letter for run, _ in line)), line[0][0].config
    return f"{letters}: {strategy}, {config['model']['name']}, {config['suite']['name']}"
