"""Speeds of two runs: speedups over the baseline arm of the same run, and on one machine token/s. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.errors import UserError
from harness.gate.comparable import Pair
from harness.gate.result import About, Answer
from harness.gate.verdict import Figure, judge
from harness.stats import Estimate, Turns, pooled, speedup, speedup_change

Key = tuple[str, int]


def speedups(name: str, pairs: Sequence[Pair], arm: Sequence[Pair], tolerance: float) -> list[Figure]:
    """Speedup, geometric mean over prompts (judged); and the ratio of totals, which long answers dominate."""
    ours, theirs = (ratios(side, other) for side, other in zip(zip(*pairs), zip(*arm)))
    ours, theirs = _shared(ours, theirs)
    change = speedup_change(*map(by_prompt, (ours, theirs)))
    verdict, detail = judge(change, tolerance)
    values = [_value(speedup(by_prompt(side))) for side in (ours, theirs)]
    totals = [_totals(side, other) for side, other in zip(zip(*pairs), zip(*arm))]
    both = {prompt: [*totals[0][prompt], *totals[1][prompt]] for prompt in totals[0].keys() & totals[1].keys()}
    total_values = [_value(pooled({p: sums[i : i + 4] for p, sums in both.items()}, (1, -1, -1, 1))) for i in (0, 4)]
    total_change = pooled(both, (1, -1, -1, 1, -1, 1, 1, -1))
    return [
        Figure(name, "speedup", *values, verdict, change, detail),
        Figure(name, "speedup, ratio of totals", *total_values, None, total_change),
    ]


def absolute(name: str, pairs: Sequence[Pair], tolerance: float) -> Figure:
    """Decode speed, geometric mean over prompts [token/s]. Drift between two runs is not separated from a change."""
    ours, theirs = ({(a.prompt, a.turn): _speeds(a) for a in side if _speeds(a)} for side in zip(*pairs))
    ours, theirs = _shared(ours, theirs)
    change = speedup_change(*map(by_prompt, (ours, theirs)))
    verdict, detail = judge(change, tolerance)
    return Figure(name, "decode speed", *(_value(speedup(by_prompt(s))) for s in (ours, theirs)), verdict, change, detail)


def require_one_machine(candidate: About, baseline: About) -> None:
    for name in sorted(candidate.machine.keys() | baseline.machine.keys()):
        ours, theirs = candidate.machine.get(name), baseline.machine.get(name)
        if ours != theirs:
            raise UserError(f"--absolute: {name} is {ours} in the candidate, {theirs} in the baseline; leave it out")


def ratios(answers: Sequence[Answer], arm: Sequence[Answer]) -> dict[Key, list[float]]:
    """Decode speed / the baseline arm's of the same prompt, turn and repetition."""
    others = {(a.prompt, a.turn): a for a in arm}
    found = {}
    for answer in answers:
        key = answer.prompt, answer.turn
        pairs = zip(answer.outcomes, others[key].outcomes) if key in others else ()
        values = [
            a.decode_tokens_per_s / b.decode_tokens_per_s
            for a, b in pairs
            if a and b and a.decode_tokens_per_s and b.decode_tokens_per_s
        ]
        if values:
            found[key] = values
    return found


def by_prompt(values: Mapping[Key, Sequence[float]]) -> dict[str, Turns]:
    found: dict[str, list] = {}
    for key in sorted(values):
        found.setdefault(key[0], []).append(values[key])
    return found


def _shared(ours: Mapping[Key, Sequence], theirs: Mapping[Key, Sequence]) -> tuple[dict, dict]:
    keys = ours.keys() & theirs.keys()
    return {k: ours[k] for k in keys}, {k: theirs[k] for k in keys}


def _totals(answers: Sequence[Answer], arm: Sequence[Answer]) -> dict[str, list[float]]:
    """By prompt: tokens after the first and seconds that they took, the strategy's and the arm's; means of repetitions."""
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


def _speeds(answer: Answer) -> list[float]:
    return [o.decode_tokens_per_s for o in answer.measured if o.decode_tokens_per_s]


def _value(estimate: Estimate | None) -> float | None:
    return estimate.value if estimate else None
