"""Two results, figure by figure and strategy by strategy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.gate import deterministic, speeds
from harness.gate.comparable import Pair, match
from harness.gate.result import About, Answer, Outcome, Result
from harness.gate.verdict import CONFIDENCE, Figure, Verdict, judge, overall
from harness.stats import Estimate, mean_over_requests, pooled

TOLERANCE = 0.05


@dataclass(frozen=True)
class Options:
    """``only``: ``acceptance`` or ``speed``, ``None`` both. ``absolute``: speeds in token/s too, on one machine."""

    tolerance: float = TOLERANCE
    strategies: Sequence[str] = ()
    common: bool = False
    only: str | None = None
    absolute: bool = False


@dataclass(frozen=True)
class Comparison:
    figures: Sequence[Figure]
    notes: Sequence[str]
    tolerance: float
    exact: bool

    @property
    def verdict(self) -> Verdict:
        return overall(figure.verdict for figure in self.figures)

    def to_json(self) -> dict[str, Any]:
        figures = [figure.to_json() for figure in self.figures]
        return {
            "verdict": str(self.verdict),
            "tolerance": self.tolerance,
            "confidence": CONFIDENCE,
            "exact_acceptance": self.exact,
            "notes": list(self.notes),
            "figures": figures,
        }


def compare(candidate: Result, baseline: Result, options: Options = Options()) -> Comparison:
    """Every figure's verdict. Raises ``UserError`` when the comparison makes no sense."""
    speed, acceptance = options.only != "acceptance", options.only != "speed"
    if options.absolute:
        speeds.require_one_machine(candidate.about, baseline.about)
    matched = match(candidate, baseline, options.strategies, options.common, speed)
    about = candidate.about
    arm = matched.pairs.get(about.baseline_arm, [])
    figures = []
    for name, pairs in matched.pairs.items():
        is_arm = name == about.baseline_arm
        figures.append(deterministic.failures(name, pairs))
        moves = not about.exact or any(side.about.by_the_clock(name) for side in (candidate, baseline))
        if acceptance and about.exact:
            figures += deterministic.figures(name, pairs, [] if is_arm else arm, counts=not moves)
        if acceptance and moves and not is_arm:
            figures += _acceptance(name, pairs, arm, about, options.tolerance)
        if speed and not is_arm:
            figures += speeds.speedups(name, pairs, arm, options.tolerance)
        if options.absolute:
            figures.append(speeds.absolute(name, pairs, options.tolerance))
    notes = list(matched.notes)
    if all(ours.outcomes == theirs.outcomes for pairs in matched.pairs.values() for ours, theirs in pairs):
        notes.append("candidate and baseline hold the very same measurements: nothing is learnt about a change")
    if acceptance and not about.exact:
        setting = f"dtype {about.dtype}" if about.greedy else f"temperature {about.sampling['temperature']:g}"
        notes.append(f"acceptance has an interval and the tolerance: exact only in float32 and greedy, here {setting}")
    return Comparison(figures, notes, options.tolerance, about.exact)


def _acceptance(
    name: str, pairs: Sequence[Pair], arm: Sequence[Pair], about: About, tolerance: float
) -> list[Figure]:
    """Acceptance that rounding, sampling or the clock may move: pooled (judged), mean over prompts, identity with the arm
    where that is not judged exactly."""
    sums = {}
    for candidate, baseline in pairs:
        columns = [*_tokens_and_rounds(candidate), *_tokens_and_rounds(baseline)]
        sums[candidate.prompt] = [a + b for a, b in zip(sums.get(candidate.prompt, [0] * 4), columns)]
    change = pooled(sums, (1, -1, -1, 1), confidence=CONFIDENCE)
    if all(candidate.outcomes == baseline.outcomes for candidate, baseline in pairs):
        change = change and Estimate(1.0, 1.0, 1.0)
    ours, theirs = (_value(pooled({p: s[i : i + 2] for p, s in sums.items()})) for i in (0, 2))
    verdict, detail = judge(change, tolerance)
    found = [Figure(name, "acceptance length", ours, theirs, verdict, change, detail)]
    means = [_value(mean_over_requests(_by_prompt([p[i] for p in pairs], _acceptance_length))) for i in (0, 1)]
    found.append(Figure(name, "acceptance, mean over prompts", *means, None))
    return found if about.exact else [*found, _identical(name, pairs, arm, about.greedy, tolerance)]


def _identical(name: str, pairs: Sequence[Pair], arm: Sequence[Pair], greedy: bool, tolerance: float) -> Figure:
    """Share of answers equal to the baseline arm's. A guard against garbled answers, which are easy to draft: it fails
    when the share certainly fell by more than the tolerance, and asks for no more measurements when that is open."""
    shares = [deterministic.identical(side, other) for side, other in zip(zip(*pairs), zip(*arm))] if arm else [{}, {}]
    ours, theirs = (_value(mean_over_requests(share)) for share in shares)
    verdict = None
    if greedy and ours is not None:
        gaps = {p: [[_mean(shares[0][p]) - _mean(shares[1][p])]] for p in shares[0].keys() & shares[1].keys()}
        gap = mean_over_requests(gaps)
        high = None if gap is None else gap.value if gap.high is None else gap.high
        verdict = Verdict.REGRESSED if high is not None and high < -tolerance else Verdict.PASS
    return Figure(name, "identical to the baseline arm", ours, theirs, verdict)


def _tokens_and_rounds(answer: Answer) -> tuple[float, float]:
    """Means over repetitions, so that a run with more of them weighs no prompt more."""
    with_rounds = [o for o in answer.measured if o.rounds]
    count = max(1, len(with_rounds))
    return sum(o.output_tokens - 1 for o in with_rounds) / count, sum(o.rounds for o in with_rounds) / count


def _acceptance_length(outcome: Outcome) -> float | None:
    return (outcome.output_tokens - 1) / outcome.rounds if outcome.rounds else None


def _by_prompt(answers: Sequence[Answer], figure: Callable[[Outcome], float | None]) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {}
    for answer in answers:
        values = [value for value in map(figure, answer.measured) if value is not None]
        found.setdefault(answer.prompt, []).append(values)
    return found


def _mean(turns: Sequence[Sequence[float]]) -> float:
    return sum(map(sum, turns)) / sum(map(len, turns))


def _value(estimate: Estimate | None) -> float | None:
    return estimate.value if estimate else None
