"""Speeds of two runs: speedups over the baseline arm of the same run, and on one machine token/s. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness.errors import UserError
from harness.gate.comparable import Pair
from harness.gate.result import About, Answer
from harness.gate.verdict import CONFIDENCE, Figure, judge
from harness.stats import Estimate, Turns, passes_error, pooled, speedup, speedup_change

Key = tuple[str, int]
Repetitions = Mapping[int, float]


def speedups(name: str, pairs: Sequence[Pair], arm: Sequence[Pair], tolerance: float) -> list[Figure]:
    """Speedup, geometric mean over prompts (judged); and the ratio of totals, which long answers dominate."""
    ours, theirs = _shared(*(ratios(side, other) for side, other in zip(zip(*pairs), zip(*arm))))
    change = change_of(ours, theirs)
    verdict, detail = judge(change, tolerance)
    values = [_value(speedup(by_prompt(side))) for side in (ours, theirs)]
    totals = [_totals(side, other) for side, other in zip(zip(*pairs), zip(*arm))]
    both = {prompt: [*totals[0][prompt], *totals[1][prompt]] for prompt in totals[0].keys() & totals[1].keys()}
    total_values = [_value(pooled({p: sums[i : i + 4] for p, sums in both.items()}, (1, -1, -1, 1))) for i in (0, 4)]
    total_change = pooled(both, (1, -1, -1, 1, -1, 1, 1, -1), confidence=CONFIDENCE)
    return [
        Figure(name, "speedup", *values, verdict, change, detail),
        Figure(name, "speedup, ratio of totals", *total_values, None, total_change),
    ]


def absolute(name: str, pairs: Sequence[Pair], tolerance: float) -> Figure:
    """Decode speed, geometric mean over prompts [token/s]. Drift between two runs is not separated from a change."""
    ours, theirs = _shared(*({(a.prompt, a.turn): _speeds(a) for a in side if _speeds(a)} for side in zip(*pairs)))
    change = change_of(ours, theirs)
    verdict, detail = judge(change, tolerance)
    values = [_value(speedup(by_prompt(side))) for side in (ours, theirs)]
    return Figure(name, "decode speed", *values, verdict, change, detail)


def change_of(candidate: Mapping[Key, Repetitions], baseline: Mapping[Key, Repetitions]) -> Estimate | None:
    """Candidate / baseline, paired by prompt. Its interval spans two: of how prompts vary, and of how passes do.

    Both must lie on one side of the tolerance before anything is decided. The same measurements twice are no change at
    all, and not two runs that happen to agree.
    """
    change = speedup_change(by_prompt(candidate), by_prompt(baseline), confidence=CONFIDENCE)
    if change is not None and _same(candidate, baseline):
        return Estimate(1.0, 1.0, 1.0)
    if change is None or change.low is None:
        return change
    logs = [{key: {r: math.log(v) for r, v in of.items()} for key, of in run.items()} for run in (candidate, baseline)]
    half = passes_error(logs, CONFIDENCE)
    if half is None:
        return Estimate(change.value)
    low, high = change.value * math.exp(-half), change.value * math.exp(half)
    return Estimate(change.value, min(low, change.low), max(high, change.high))


def _same(candidate: Mapping[Key, Repetitions], baseline: Mapping[Key, Repetitions]) -> bool:
    """Ratios of equal measurements may differ in their last bit: (a * f) / (b * f) is not always a / b."""
    if candidate.keys() != baseline.keys() or any(candidate[key].keys() != baseline[key].keys() for key in candidate):
        return False
    return all(math.isclose(value, baseline[key][r]) for key, of in candidate.items() for r, value in of.items())


def require_one_machine(candidate: About, baseline: About) -> None:
    for name in sorted(candidate.machine.keys() | baseline.machine.keys()):
        ours, theirs = candidate.machine.get(name), baseline.machine.get(name)
        if ours != theirs:
            raise UserError(f"--absolute: {name} is {ours} in the candidate, {theirs} in the baseline; leave it out")


def ratios(answers: Sequence[Answer], arm: Sequence[Answer]) -> dict[Key, Repetitions]:
    """Decode speed / the baseline arm's of the same repetition, by prompt and turn, then repetition."""
    others = {(a.prompt, a.turn): a for a in arm}
    found = {}
    for answer in answers:
        key = answer.prompt, answer.turn
        pairs = zip(answer.outcomes, others[key].outcomes) if key in others else ()
        values = {
            repetition: a.decode_tokens_per_s / b.decode_tokens_per_s
            for repetition, (a, b) in enumerate(pairs)
            if a and b and a.decode_tokens_per_s and b.decode_tokens_per_s
        }
        if values:
            found[key] = values
    return found


def by_prompt(values: Mapping[Key, Repetitions]) -> dict[str, Turns]:
    found: dict[str, list] = {}
    for key in sorted(values):
        found.setdefault(key[0], []).append(list(values[key].values()))
    return found


def _shared(ours: Mapping[Key, Repetitions], theirs: Mapping[Key, Repetitions]) -> tuple[dict, dict]:
    keys = ours.keys() & theirs.keys()
    return {k: ours[k] for k in keys}, {k: theirs[k] for k in keys}


def _totals(answers: Sequence[Answer], arm: Sequence[Answer]) -> dict[str, list[float]]:
    """By prompt: tokens after the first and their seconds, the strategy's and the arm's; means of repetitions."""
    found: dict[str, list[float]] = {}
    others = {(a.prompt, a.turn): a for a in arm}
    for answer in answers:
        other = others.get((answer.prompt, answer.turn))
        if other and _speeds(answer) and _speeds(other):
            columns = [*_tokens_and_seconds(answer), *_tokens_and_seconds(other)]
            found[answer.prompt] = [a + b for a, b in zip(found.get(answer.prompt, [0.0] * 4), columns)]
    return found


def _tokens_and_seconds(answer: Answer) -> tuple[float, float]:
    timed = [o for o in answer.measured if o.decode_tokens_per_s]
    tokens = [o.output_tokens - 1 for o in timed]
    seconds = [n / o.decode_tokens_per_s for n, o in zip(tokens, timed)]
    return sum(tokens) / len(timed), sum(seconds) / len(timed)


def _speeds(answer: Answer) -> Repetitions:
    return {r: o.decode_tokens_per_s for r, o in enumerate(answer.outcomes) if o and o.decode_tokens_per_s}


def _value(estimate: Estimate | None) -> float | None:
    return estimate.value if estimate else None
