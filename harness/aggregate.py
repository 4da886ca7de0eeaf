"""What a batch of requests does as a whole: pure functions over cells."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from harness import metrics, stats
from harness.records import Decoded
from harness.store import Cell

# A batch's number, turn and repetition: the same for every strategy.
Place = tuple[int, int, int]
NAMES = ("aggregate_tokens_per_s", "aggregate_speedup", "batch_size", "batches", "batches_left_out")


def figures(cells: Sequence[Cell], reference: Sequence[Cell], is_baseline: bool, seed: int) -> dict[str, Any]:
    """One strategy's figures of whole batches, all ``None`` where requests went one by one. ``reference``: the baseline's cells.

    ``batch_size``: requests of a full batch, the largest that there is; the figures are of full batches. ``batches``: how many.
    ``batches_left_out``: those that are smaller, failed, or were stored in part before a kill. ``aggregate_tokens_per_s``: output
    tokens after the first of each request / batch time, both summed over batches [token/s]. ``aggregate_speedup``: geometric mean
    over batches of their own quotient / the baseline's for the same prompts [-], with an interval that resamples batches; turns
    and repetitions of a batch stay together.
    """
    sizes = [cell.batch_size for cell in (*cells, *reference) if cell.batch_size]
    if not sizes:
        return dict.fromkeys(NAMES)
    mine, theirs = _full(cells, max(sizes)), _full(reference, max(sizes))
    timed = [requests for requests in map(_requests, mine.values()) if batch_s(requests) > 0]
    found = (
        sum(map(tokens_behind_firsts, timed)) / sum(map(batch_s, timed)) if timed else None,
        _speedup(mine, theirs, is_baseline, seed),
        max(sizes),
        len(mine),
        len({_place(cell) for cell in cells if cell.batch_size}) - len(mine),
    )
    return dict(zip(NAMES, found, strict=True))


def of_one(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The same figures of a run whose requests went one by one, each a batch of its own: then speeds and speedups are the requests'."""
    found = (figures["decode_tokens_per_s"], figures["speedup"], 1, figures["cells"] - figures["failed"], figures["failed"])
    return dict(zip(NAMES, found, strict=True))


def batch_s(requests: Sequence[Decoded]) -> float:
    """Batch time = last token of any request available - first token of any request available [s]."""
    return max(d.end_s for d in requests) - min(d.ttft_s for d in requests)


def tokens_behind_firsts(requests: Sequence[Decoded]) -> int:
    """Output tokens of all requests but each one's first [token]."""
    return sum(metrics.output_tokens(d) - 1 for d in requests)


def crossings(speedups: Mapping[int, float]) -> list[float]:
    """The batches at which a speedup, given by batch, crosses 1 on its way from above to below or back; none where it does not.

    Between neighbouring batches a < b the logarithm of the speedup s is taken as linear in the logarithm of the batch, so that it
    crosses at a * (b / a) ** (log s(a) / (log s(a) - log s(b))).
    """
    found = []
    for (a, above), (b, below) in pairwise(sorted(speedups.items())):
        if (above > 1) != (below > 1):
            found.append(a * (b / a) ** (math.log(above) / (math.log(above) - math.log(below))))
    return found


def _full(cells: Sequence[Cell], size: int) -> dict[Place, list[Cell]]:
    """The batches of ``size`` requests that were all answered in one call of the engine."""
    calls: dict[tuple[Place, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.decoded and cell.batch_size == size:
            calls[_place(cell), cell.session].append(cell)
    return {place: members for (place, _), members in calls.items() if len(members) == size}


def _place(cell: Cell) -> Place:
    return cell.batch, cell.key.turn, cell.key.repetition


def _requests(cells: Sequence[Cell]) -> list[Decoded]:
    return [cell.decoded for cell in cells]


def _speed(cells: Sequence[Cell]) -> float | None:
    requests = _requests(cells)
    tokens, seconds = tokens_behind_firsts(requests), batch_s(requests)
    return tokens / seconds if tokens and seconds > 0 else None


def _speedup(mine: Mapping[Place, list[Cell]], theirs: Mapping[Place, list[Cell]], is_baseline: bool, seed: int) -> list | None:
    if is_baseline:
        return [1.0, 1.0, 1.0] if mine else None
    ratios: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for place in sorted(mine.keys() & theirs.keys()):
        ours, other = _speed(mine[place]), _speed(theirs[place])
        if ours and other and _prompts(mine[place]) == _prompts(theirs[place]):
            batch, turn, _ = place
            ratios[f"{batch:09}"][turn].append(ours / other)
    estimate = stats.speedup({batch: list(turns.values()) for batch, turns in ratios.items()}, seed)
    return estimate.to_json() if estimate else None


def _prompts(cells: Sequence[Cell]) -> set[str]:
    return {cell.key.prompt for cell in cells}
