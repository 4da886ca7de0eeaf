"""What an engine does as a whole while many requests are under way: pure functions over cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from harness import metrics
from harness.store import Cell


def figures(cells: Sequence[Cell]) -> dict[str, Any]:
    """The figures of one strategy's turns under load. A turn is what one session measured of one repetition.

    T is the time from the first request of a turn to the last token of it, summed over turns:
    ``throughput_tokens_per_s`` = output tokens / T [token/s]; ``requests_per_s`` = answers / T [1/s];
    ``in_flight_mean`` = sum of end-to-end latencies / T (Little's law); ``in_flight_max``, the most at one moment. Requests
    that failed are in none of them.
    """
    turns: dict[tuple[int, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.decoded:
            turns[cell.key.repetition, cell.session].append(cell)
    answers = [cell.decoded for turn in turns.values() for cell in turn]
    seconds = sum(max(map(_end, turn)) - min(cell.started_at for cell in turn) for turn in turns.values())
    if seconds <= 0:
        return {name: None for name in ("throughput_tokens_per_s", "requests_per_s", "in_flight_mean", "in_flight_max")}
    return {
        "throughput_tokens_per_s": sum(map(metrics.output_tokens, answers)) / seconds,
        "requests_per_s": len(answers) / seconds,
        "in_flight_mean": sum(map(metrics.end_to_end_s, answers)) / seconds,
        "in_flight_max": max(map(_most_at_once, turns.values())),
    }


def _most_at_once(cells: Sequence[Cell]) -> int:
    # An end comes before a beginning at the same moment: the one made room for the other.
    edges = sorted([(cell.started_at, 1) for cell in cells] + [(_end(cell), -1) for cell in cells])
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


def _end(cell: Cell) -> float:
    return cell.started_at + cell.decoded.end_s
