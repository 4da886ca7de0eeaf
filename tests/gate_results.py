"""Made-up results for tests of the gate: numbers chosen by hand, no run behind them."""

from __future__ import annotations

from dataclasses import replace

from harness.gate.result import About, Answer, Outcome, Result

ABOUT = About(
    model="m",
    model_sha256="abc",
    dtype="float32",
    engine="torch",
    suite="quick",
    suite_sha256="def",
    sampling={"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0, "max_new_tokens": 64},
    baseline_arm="baseline",
    strategies={"baseline": {}, "ddtree": {"budget": 16}},
    machine={"cpu": "Example CPU", "cores": 2, "gpus": []},
    code={"git": None, "torch": "2"},
)
BF16 = replace(ABOUT, dtype="bfloat16")


def result(speedups=(2.0,) * 8, repetitions: int = 2, about: About = ABOUT, turns: int = 1, rounds: int = 20) -> Result:
    """``speedups``: ddtree's, one for each prompt. Outputs are the same everywhere; 41 tokens."""
    answers = []
    for number, factor in enumerate(speedups):
        for turn in range(turns):
            for strategy, speed in (("baseline", 10.0 + number), ("ddtree", (10.0 + number) * factor)):
                fast = strategy == "ddtree"
                outcome = Outcome(f"tokens{number}", 41, rounds if fast else 40, 40 - rounds if fast else 0, speed)
                answers.append(Answer(f"p{number:02}", turn, strategy, f"sha{number}{turn}", (outcome,) * repetitions))
    return Result(about, tuple(answers))


def change(given: Result, strategy: str, prompts: int = 1, **outcome) -> Result:
    """``given`` with other outcomes in the strategy's answers to the first ``prompts`` prompts."""
    names = sorted({a.prompt for a in given.answers})[:prompts]
    return replace(given, answers=tuple(_changed(a, outcome) if a.strategy == strategy and a.prompt in names else a
                                        for a in given.answers))  # fmt: skip


def fail(given: Result, strategy: str, prompt: str) -> Result:
    """``given`` with every repetition of one answer failed."""
    return replace(given, answers=tuple(
        replace(a, outcomes=(None,) * len(a.outcomes), failed=len(a.outcomes))
        if (a.strategy, a.prompt) == (strategy, prompt) else a for a in given.answers))  # fmt: skip


def _changed(answer: Answer, outcome: dict) -> Answer:
    return replace(answer, outcomes=tuple(replace(o, **outcome) for o in answer.outcomes))
