"""Figures of the answers to one kind of prompt, with intervals: pure functions over cells.

A category is what a suite calls one; in a run of several suites it is the suite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from harness import metrics, stats
from harness.records import Decoded
from harness.store import Cell


def parted(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each category, in order of appearance."""
    found: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        found[cell.category].append(cell)
    return dict(found)


def figures(cells: Sequence[Cell], seed: int) -> dict[str, Any]:
    """Each figure with its 95 % interval over prompts, ``[value, low, high]``; ``None`` where the cells cannot give it.

    ``decode_tokens_per_s`` (sum of N - 1 / sum of decode times), ``acceptance_length`` (sum of N - 1 / sum of R) and ``round_s``
    (sum of decode times / sum of R) are ratios of totals; ``ttft_s``, ``tpot_s`` and ``end_to_end_s`` means over prompts.
    """
    return {
        "prompts": len({cell.key.prompt for cell in cells}),
        "cells": len(cells),
        "failed": sum(cell.failure is not None for cell in cells),
        "decode_tokens_per_s": _ratio(cells, _steps, metrics.decode_s, metrics.tpot_s, seed),
        "acceptance_length": _ratio(cells, _steps, metrics.rounds, metrics.rounds, seed),
        "round_s": _ratio(cells, metrics.decode_s, metrics.rounds, metrics.rounds, seed),
        **{figure.__name__: _mean(cells, figure, seed) for figure in (metrics.ttft_s, metrics.tpot_s, metrics.end_to_end_s)},
    }


def _steps(decoded: Decoded) -> int:
    return metrics.output_tokens(decoded) - 1


def _ratio(cells: Sequence[Cell], above: Callable, below: Callable, known: Callable, seed: int) -> list[float | None] | None:
    """Sum of ``above`` / sum of ``below`` over the answers for which ``known`` is something."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for cell in cells:
        if cell.decoded and known(cell.decoded):
            sums[cell.key.prompt][0] += above(cell.decoded)
            sums[cell.key.prompt][1] += below(cell.decoded)
    return _json(stats.pooled(sums, seed=seed))


def _mean(cells: Sequence[Cell], figure: Callable, seed: int) -> list[float | None] | None:
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if cell.decoded and (value := figure(cell.decoded)) is not None:
            values[cell.key.prompt][cell.key.turn].append(value)
    return _json(stats.mean_over_requests({prompt: list(turns.values()) for prompt, turns in values.items()}, seed))


def _json(estimate: stats.Estimate | None) -> list[float | None] | None:
    return estimate.to_json() if estimate else None
