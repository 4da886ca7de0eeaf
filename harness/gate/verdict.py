"""From an interval to a verdict. Pure.

A change is candidate / baseline, and more is better for every figure here. With tolerance t the bound is 1 - t:
pass when no part of the interval lies below the bound, regressed when the whole interval lies below it, inconclusive else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.stats import Estimate

# An interval of 98 % ends below the truth in 1 % of cases: equal code is called regressed no more often than that,
# however noisy the machine.
CONFIDENCE = 0.98


class Verdict(StrEnum):
    PASS = "pass"
    INCONCLUSIVE = "inconclusive"
    REGRESSED = "regressed"

    @property
    def exit_status(self) -> int:
        return {Verdict.PASS: 0, Verdict.REGRESSED: 1, Verdict.INCONCLUSIVE: 3}[self]


@dataclass(frozen=True)
class Figure:
    """One compared figure of one strategy. ``verdict`` ``None``: reported, not judged.

    ``change`` is candidate / baseline with its interval; figures that must be equal have none. ``detail`` says what
    the numbers do not: where two runs first differ, what would decide.
    """

    strategy: str
    name: str
    candidate: float | None
    baseline: float | None
    verdict: Verdict | None
    change: Estimate | None = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        change = self.change.to_json() if self.change else None
        return {**vars(self), "verdict": self.verdict and str(self.verdict), "change": change}


def judge(change: Estimate | None, tolerance: float) -> tuple[Verdict, str]:
    """The verdict on an interval, and what to do when it decides nothing."""
    if change is None:
        return Verdict.INCONCLUSIVE, "no answer has this figure in both runs"
    if change.low is None:
        return Verdict.INCONCLUSIVE, "one prompt, or one repetition in both runs, carries no interval: measure more"
    bound = 1 - tolerance
    if change.low >= bound:
        return Verdict.PASS, ""
    if change.high < bound:
        return Verdict.REGRESSED, f"a loss of more than {100 * tolerance:g} % is certain at {100 * CONFIDENCE:g} %"
    return Verdict.INCONCLUSIVE, _what_would_decide(change, bound)


def judge_equal(unequal: int, total: int) -> Verdict:
    """Deterministic figures get no tolerance: one unequal answer is a regression."""
    return Verdict.REGRESSED if unequal or not total else Verdict.PASS


def overall(verdicts: Iterable[Verdict | None]) -> Verdict:
    """The worst of them: one regression regresses, one open question leaves the whole open."""
    found = set(verdicts)
    return next((v for v in (Verdict.REGRESSED, Verdict.INCONCLUSIVE) if v in found), Verdict.PASS)


def _what_would_decide(change: Estimate, bound: float) -> str:
    """An interval shrinks with the square root of the measurements behind it."""
    above = change.value > bound
    reach = math.log(change.value / change.low if above else change.high / change.value)
    gap = abs(math.log(change.value / bound))
    if gap <= 0.1 * -math.log(bound):
        return "the loss is about the tolerance: more repetitions would hardly decide"
    return f"about {max(2, math.ceil((reach / gap) ** 2))} times as many repetitions would decide"
