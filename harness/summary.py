"""From cells to the figures of a run: pure functions over plain data."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness import aggregate, categories, metrics, stats, throughput
from harness.block import Block
from harness.records import Decoded
from harness.store import Cell

# The last line of a run's output holds exactly these figures, in this order.
HEADLINE = (
    "decode_tokens_per_s",
    "speedup",
    "acceptance_length",
    "rounds",
    "identical",
    "ttft_p50_s",
    "tpot_p50_s",
    "peak_memory_bytes",
    "throughput_tokens_per_s",
    "aggregate_tokens_per_s",
    "aggregate_speedup",
)


def summarise(
    cells: Sequence[Cell],
    strategies: Sequence[str],
    baseline: str | None,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    blocks: Sequence[Block] | None = None,
) -> dict[str, Any]:
    """The figures of every strategy, its headline first; a figure that the cells cannot give is ``None``.

    ``settings`` are the engine's, for the bandwidth use. ``blocks``: of a run under load, whose rounds are counted there.
    """
    by_name = {name: [cell for cell in cells if cell.key.strategy == name] for name in strategies}
    reference = by_name.get(baseline, [])
    counted = None if blocks is None else {name: [b.as_one_answer() for b in blocks if b.strategy == name] for name in by_name}
    figures = {
        name: _strategy(mine, reference, name == baseline, seed, counted and counted[name]) for name, mine in by_name.items()
    }
    for name, mine in by_name.items():
        figures[name]["bandwidth_use"] = _bandwidth_use(mine, settings or {})
    return figures


def prompts_sha256(cells: Iterable[Cell]) -> str:
    """One hash over the rendered token ids of every prompt: runs (or arms) with equal ones were asked the same.

    SHA-256 over the sorted, distinct lines "<prompt> <turn> <prompt_sha256>"; cells that were never rendered have none.
    """
    asked = {f"{cell.key.prompt} {cell.key.turn} {cell.prompt_sha256}" for cell in cells if cell.prompt_sha256}
    return hashlib.sha256("\n".join(sorted(asked)).encode()).hexdigest()


def headline(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: {figure: figures[figure] for figure in HEADLINE} for name, figures in summary.items()}


def _strategy(
    cells: Sequence[Cell], reference: Sequence[Cell], is_baseline: bool, seed: int, counted: Sequence[Decoded] | None
) -> dict[str, Any]:
    """``counted`` holds the rounds of a run under load; where requests show their own, these are better. ``None``: no load."""
    requests = [cell.decoded for cell in cells if cell.decoded]
    drafted = requests if counted is None or any(map(metrics.rounds, requests)) else counted
    load = throughput.figures([] if counted is None else cells)
    ttft = metrics.percentiles([metrics.ttft_s(d) for d in requests])
    tpot = metrics.percentiles([metrics.tpot_s(d) for d in requests])
    return {
        "decode_tokens_per_s": metrics.pooled_decode_tokens_per_s(requests),
        "speedup": _speedup(cells, reference, is_baseline, seed),
        "acceptance_length": metrics.pooled_acceptance_committed(drafted),
        "rounds": sum(map(metrics.rounds, drafted)),
        "identical": metrics.identical_share(_tokens_in_pairs(cells, reference)),
        "ttft_p50_s": ttft["p50"],
        "tpot_p50_s": tpot["p50"],
        "peak_memory_bytes": _peak(c.host_peak_bytes + c.device_peak_bytes for c in cells if c.decoded),
        **load,
        **aggregate.figures(cells, reference, is_baseline, seed),
        "cells": len(cells),
        "failed": sum(cell.failure is not None for cell in cells),
        "output_tokens": sum(map(metrics.output_tokens, requests)),
        "ttft_s": ttft,
        "tpot_s": tpot,
        "chunk_s": metrics.percentiles([c for d in requests for c in metrics.chunks_s(d)]),
        "chunk_tokens": metrics.mean([n for d in requests for n in metrics.chunk_tokens(d)]),
        "end_to_end_s": metrics.percentiles([metrics.end_to_end_s(d) for d in requests]),
        "end_to_end_tokens_per_s": metrics.pooled_end_to_end_tokens_per_s(requests),
        "acceptance_length_verified": metrics.pooled_acceptance_verified(drafted),
        "acceptance_length_mean_over_requests": metrics.mean([metrics.acceptance_committed(d) for d in requests]),
        "acceptance_length_verified_mean_over_requests": metrics.mean([metrics.acceptance_verified(d) for d in requests]),
        "acceptance_by_depth": metrics.acceptance_by_depth(drafted),
        "acceptance_to_depth": metrics.acceptance_to_depth(drafted),
        "accepted_histogram": metrics.accepted_histogram(drafted),
        "proposed_histogram": metrics.proposed_histogram(drafted),
        "mean_round": metrics.mean_round(drafted),
        "repeated_4grams": metrics.mean([metrics.repeated_4grams(d.tokens) for d in requests if d.tokens]),
        "looping": metrics.acceptance_by_looping(requests),
        "host_peak_bytes": _peak(c.host_peak_bytes for c in cells if c.decoded),
        "device_peak_bytes": max((c.device_peak_bytes for c in cells if c.decoded), default=None),
        "throttled": sum(c.throttled is True for c in cells),
        "prompts_sha256": prompts_sha256(cells),
        "speedup_by_prompt": prompt_speedups(cells, reference),
        "by_category": {
            category: {
                **categories.figures(some, seed),
                "speedup": _speedup(some, reference, is_baseline, seed),
                "identical": metrics.identical_share(_tokens_in_pairs(some, reference)),
            }
            for category, some in categories.parted(cells).items()
        },
    }


def _peak(peaks: Iterable[int]) -> int | None:
    """0 stands for a memory that is not this process's."""
    return max(peaks, default=0) or None


def _bandwidth_use(cells: Sequence[Cell], settings: Mapping[str, Any]) -> float | None:
    known = [settings.get(name) for name in ("weight_bytes", "cache_bytes_per_token", "copy_bytes_per_s")]
    if not all(isinstance(value, (int, float)) and value > 0 for value in known) or any(cell.batch_size for cell in cells):
        return None  # what a round of a batch moves is shared by its requests
    return metrics.bandwidth_use([(cell.prompt_tokens, cell.decoded) for cell in cells if cell.decoded], *known)


def _speedup(
    cells: Sequence[Cell], reference: Sequence[Cell], is_baseline: bool, seed: int
) -> list[float | None] | None:
    if is_baseline:
        return [1.0, 1.0, 1.0] if any(cell.decoded for cell in cells) else None
    estimate = stats.speedup(speed_ratios(cells, reference), seed)
    return estimate.to_json() if estimate else None


def speed_ratios(cells: Sequence[Cell], reference: Sequence[Cell]) -> dict[str, list[list[float]]]:
    """Decode speed / the reference's, by prompt, turn and repetition; pairs without both speeds are left out."""
    ratios: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell, other in pairs(cells, reference):
        mine, theirs = metrics.decode_tokens_per_s(cell.decoded), metrics.decode_tokens_per_s(other.decoded)
        if mine is not None and theirs is not None:
            ratios[cell.key.prompt][cell.key.turn].append(mine / theirs)
    return {prompt: list(turns.values()) for prompt, turns in ratios.items()}


def prompt_speedups(cells: Sequence[Cell], reference: Sequence[Cell]) -> dict[str, float]:
    """Each prompt's own speedup, the geometric mean over its turns and repetitions [-]."""
    return {p: stats.speedup({p: turns}).value for p, turns in speed_ratios(cells, reference).items()}


def _tokens_in_pairs(cells: Sequence[Cell], reference: Sequence[Cell]) -> list[tuple]:
    """Outputs to the same prompt: later turns of conversations that went different ways answer different questions."""
    same = [(a, b) for a, b in pairs(cells, reference) if a.prompt_sha256 == b.prompt_sha256]
    return [(cell.decoded.output, other.decoded.output) for cell, other in same]


def pairs(cells: Sequence[Cell], reference: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Finished cells with the reference's finished cell of the same prompt, turn and repetition."""
    others = {cell.key._replace(strategy=""): cell for cell in reference if cell.decoded}
    keyed = ((cell, others.get(cell.key._replace(strategy=""))) for cell in cells if cell.decoded)
    return [(cell, other) for cell, other in keyed if other is not None]
