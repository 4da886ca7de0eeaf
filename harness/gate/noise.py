"""How noisy a speedup is, and how often the gate errs at that noise. Pure.

Model of a run: log speedup of prompt p in repetition r = mean + a_p + b_r + e_pr. Prompts differ by a_p, which two runs
share; b_r is what a whole pass over the prompts shares (neighbours, clocks); e_pr is what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from harness.errors import UserError
from harness.gate.result import Result
from harness.gate.speeds import Key, Repetitions, by_prompt, change_of, ratios
from harness.gate.verdict import Verdict, judge


@dataclass(frozen=True)
class Noise:
    """Standard deviations of log speedup [-]: between prompts, between passes, and of a single cell.

    ``residuals``: the cells' residuals, with standard deviation 1, to draw from; empty: a normal distribution.
    """

    prompts: float
    passes: float
    cells: float
    residuals: tuple[float, ...] = ()

    def to_json(self) -> dict[str, float]:
        return {"prompts": self.prompts, "passes": self.passes, "cells": self.cells}


def log_speedups(result: Result, strategy: str) -> np.ndarray:
    """[prompts, repetitions], means over turns; prompts without every repetition of every turn are left out."""
    arm = list(result.of(result.about.baseline_arm or "").values())
    answers = result.of(strategy)
    found = ratios(list(answers.values()), arm)
    repetitions = max((len(values) for values in found.values()), default=0)
    complete = {key: values for key, values in found.items() if len(values) == repetitions}
    whole = {key[0] for key in complete} - {key[0] for key in answers.keys() - complete.keys()}
    turns = by_prompt({key: values for key, values in complete.items() if key[0] in whole})
    return np.array([np.log(turns[prompt]).mean(axis=0) for prompt in sorted(turns)]).reshape(-1, repetitions)


def estimate(logs: np.ndarray) -> Noise:
    """Variance components of ``logs`` [prompts, repetitions], by the two-way analysis of variance without replication.

    E[mean square of cells] = s_e^2, of passes = s_e^2 + P s_b^2, of prompts = s_e^2 + R s_a^2.
    """
    prompts, repetitions = logs.shape
    if prompts < 2 or repetitions < 2:
        raise UserError(
            f"noise of {prompts} prompts with {repetitions} repetitions: needs 2 of each; set measure.repetitions"
        )
    by_row, by_column, mean = logs.mean(axis=1), logs.mean(axis=0), logs.mean()
    residuals = logs - by_row[:, None] - by_column + mean
    cells = (residuals**2).sum() / ((prompts - 1) * (repetitions - 1))
    of_passes = prompts * by_column.var(ddof=1)
    of_prompts = repetitions * by_row.var(ddof=1)
    spread = residuals.std()
    return Noise(
        prompts=float(np.sqrt(max(0.0, (of_prompts - cells) / repetitions))),
        passes=float(np.sqrt(max(0.0, (of_passes - cells) / prompts))),
        cells=float(np.sqrt(cells)),
        residuals=tuple((residuals / spread).ravel().tolist()) if spread > 0 else (),
    )


def simulate(noise: Noise, prompts: int, repetitions: int, rng: np.random.Generator) -> np.ndarray:
    """Log speedups of two runs of the same code on the same prompts, [2, prompts, repetitions]."""
    shape = 2, prompts, repetitions
    own = rng.normal(0, noise.prompts, (prompts, 1))
    shared = rng.normal(0, noise.passes, (2, 1, repetitions))
    drawn = rng.choice(noise.residuals, shape) if noise.residuals else rng.normal(0, 1, shape)
    return own + shared + noise.cells * drawn


def rates(
    noise: Noise, prompts: int, repetitions: int, loss: float, tolerance: float, comparisons: int = 1000, seed: int = 0
) -> dict[str, float]:
    """Share of each verdict on the speedup when the candidate truly loses ``loss`` of its speed [-]."""
    rng = np.random.default_rng(seed)
    counts = dict.fromkeys(Verdict, 0)
    for _ in range(comparisons):
        baseline, candidate = np.exp(simulate(noise, prompts, repetitions, rng))
        candidate = candidate * (1 - loss)
        counts[judge(change_of(_as_answers(candidate), _as_answers(baseline)), tolerance)[0]] += 1
    return {str(verdict): count / comparisons for verdict, count in counts.items()}


def keeps_its_promise(same: dict[str, float], worse: dict[str, float]) -> bool:
    """Of equal code at most 1 % is called regressed, and of losses of twice the tolerance at least 95 %."""
    return same[Verdict.REGRESSED] <= 0.01 and worse[Verdict.REGRESSED] >= 0.95


def rates_by_repetitions(
    noise: Noise, prompts: int, tolerance: float, choices: Sequence[int], comparisons: int = 1000, seed: int = 0
) -> list[dict]:
    """For each number of repetitions the rates of equal code and of a loss of twice the tolerance."""
    rows = []
    for repetitions in choices:
        same, worse = (
            rates(noise, prompts, repetitions, loss, tolerance, comparisons, seed) for loss in (0, 2 * tolerance)
        )
        kept = keeps_its_promise(same, worse)
        rows.append({"repetitions": repetitions, "same_code": same, "twice_the_tolerance_lost": worse, "kept": kept})
    return rows


def required_repetitions(rows: Sequence[dict]) -> int | None:
    """The fewest repetitions that keep the promise and from which on every larger number tried keeps it too."""
    kept = list(takewhile(lambda row: row["kept"], reversed(rows)))
    return kept[-1]["repetitions"] if kept else None


def _as_answers(values: np.ndarray) -> dict[Key, Repetitions]:
    return {(f"{prompt:05}", 0): dict(enumerate(repetitions)) for prompt, repetitions in enumerate(values.tolist())}
