"""Statistics of paired comparisons: pure functions over numbers.

Prompts differ far more than repetitions of one prompt, so the prompt is the unit that a 95 % interval resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 4000


@dataclass(frozen=True)
class Estimate:
    """A value with its interval. ``low`` and ``high`` are ``None`` when the data cannot carry one (a single prompt)."""

    value: float
    low: float | None = None
    high: float | None = None

    def to_json(self) -> list[float | None]:
        return [self.value, self.low, self.high]


def speedup(ratios: Mapping[str, Sequence[Sequence[float]]], seed: int = 0) -> Estimate | None:
    """Geometric mean over prompts of a strategy's decode speed / the baseline's [-], with a 95 % bootstrap interval.

    ``ratios`` maps a prompt to its turns, and each turn to its repetitions' ratios. A prompt's log ratio is the mean
    over turns of the mean over repetitions; speedup = exp(mean over prompts). The bootstrap draws prompts with
    replacement, and inside each drawn prompt the repetitions of every turn. ``None`` without any ratio.
    """
    logs = [[np.log(turn) for turn in turns if len(turn)] for turns in ratios.values()]
    logs = [turns for turns in logs if turns]
    if not logs:
        return None
    value = float(np.exp(np.mean([_prompt_mean(turns) for turns in logs])))
    if len(logs) < 2:
        return Estimate(value)
    means = _bootstrap(logs, np.random.default_rng(seed))
    low, high = np.exp(np.quantile(means, _tails(len(logs))))
    return Estimate(value, float(low), float(high))


def _prompt_mean(turns: Sequence[np.ndarray]) -> float:
    return float(np.mean([turn.mean() for turn in turns]))


def _bootstrap(logs: Sequence[Sequence[np.ndarray]], rng: np.random.Generator) -> np.ndarray:
    """``RESAMPLES`` means over prompts; each draw of a prompt draws its repetitions anew."""
    drawn = rng.integers(len(logs), size=(RESAMPLES, len(logs)))
    values = np.empty(drawn.shape)
    for prompt, turns in enumerate(logs):
        here = drawn == prompt
        picks = [turn[rng.integers(len(turn), size=(here.sum(), len(turn)))].mean(axis=1) for turn in turns]
        values[here] = np.mean(picks, axis=0)
    return values.mean(axis=1)


def _tails(n: int) -> tuple[float, float]:
    """The bootstrap's two quantiles, widened for few prompts: normal.cdf(sqrt(n / (n - 1)) * t.ppf(alpha / 2, n - 1)).

    A plain percentile interval is too narrow by about sqrt((n - 1) / n) and by t against normal (Hesterberg, "What
    teachers should know about the bootstrap", 2015, expanded percentile interval).
    """
    alpha = 1 - CONFIDENCE
    low = float(stats.norm.cdf(np.sqrt(n / (n - 1)) * stats.t.ppf(alpha / 2, n - 1)))
    return low, 1 - low
