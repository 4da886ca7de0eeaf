"""The questions that drafters are trained on, none of which a suite asks.

Three sources: GSM8K's training split, MBPP's rows outside its evaluation split, and openings that the target completes.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from harness.suites.catalogue import GSM8K_TRAIN, SUITES
from harness.suites.files import read_pinned
from harness.suites.wording import HUMANEVAL, MATHS, MBPP_EVALUATION, worded
from harness.training.open_turns import OPEN_TURNS
from harness.training.overlap import normalised, passages_of

# Rows of the pinned training file (0-based) that share a passage of 12 words with a row of a suite.
_GSM8K_NEAR_A_SUITE = frozenset({20, 406, 1314, 5162})

# How often each source is drawn; relative, so they need not sum to 1. "open/..." are the openings by category.
WEIGHTS: dict[str, float] = {
    "gsm8k": 0.17,
    "mbpp": 0.04,
    "open/code": 0.24,
    "open/maths": 0.06,
    "open/any": 0.12,
    "open/chat": 0.11,
    "open/writing": 0.07,
    "open/roleplay": 0.04,
    "open/reasoning": 0.04,
    "open/stem": 0.04,
    "open/humanities": 0.04,
    "open/extraction": 0.03,
    "open/translation": 0.01,
    "open/summary": 0.02,
}


@dataclass(frozen=True)
class Prompt:
    """One item of training. ``complete``: a whole question; otherwise an opening that the target finishes first."""

    source: str
    category: str
    text: str
    complete: bool


def gsm8k_train(path: str | Path) -> tuple[Prompt, ...]:
    """GSM8K's training questions; even rows worded as the maths suites word them, odd rows bare.

    Raises ``UserError`` when ``path`` is missing or not the pinned file.
    """
    records = read_pinned(GSM8K_TRAIN, Path(path))
    return tuple(
        Prompt("gsm8k", "maths", record["question"] if row % 2 else worded(MATHS, record["question"]), True)
        for row, record in enumerate(records)
        if row not in _GSM8K_NEAR_A_SUITE
    )


def mbpp_outside_evaluation(path: str | Path) -> tuple[Prompt, ...]:
    """MBPP's tasks outside 11..510, each asked twice: bare as the suite does, and as a function to complete.

    The second wording gives a drafter HumanEval's form (signature, docstring, examples) without HumanEval's rows. Tasks
    that equal one of the evaluation split, or share a passage with one, are left out. Raises ``UserError`` as
    ``gsm8k_train`` does.
    """
    records = read_pinned(SUITES["mbpp"], Path(path))
    evaluated = [normalised(record["prompt"]) for record in records if record["task_id"] in MBPP_EVALUATION]
    taken = {*evaluated, *(passage for words in evaluated for passage in passages_of(words))}
    prompts = []
    for record in records:
        words = normalised(record["prompt"])
        if record["task_id"] in MBPP_EVALUATION or not taken.isdisjoint([words, *passages_of(words)]):
            continue
        prompts.append(Prompt("mbpp", "code", record["prompt"], True))
        prompts.append(Prompt("mbpp", "code", worded(HUMANEVAL, _to_complete(record)), True))
    return tuple(prompts)


def openings() -> tuple[Prompt, ...]:
    """``OPEN_TURNS`` as prompts; their sources are ``open/CATEGORY``."""
    return tuple(Prompt(f"open/{category}", category, text, False) for category, text in OPEN_TURNS)


def mix(
    seed: int, n: int, questions: Sequence[Prompt] = (), weights: Mapping[str, float] = WEIGHTS
) -> Iterator[Prompt]:
    """``n`` items drawn from ``questions`` and the openings; the same for the same arguments.

    Each draw picks a source by its weight, then that source's next item: a source is gone through in shuffled order
    before any item of it comes again. Sources without items are left out, so ``weights`` may name files that are not at
    hand. Raises ``UserError`` for a source without a weight, a negative weight, or nothing to draw from.
    """
    pools: dict[str, list[Prompt]] = {}
    for prompt in (*questions, *openings()):
        pools.setdefault(prompt.source, []).append(prompt)
    for name, weight in weights.items():
        if weight < 0:
            raise UserError(f"weights[{name}]={weight}: must be 0 or larger")
    missing = sorted({prompt.source for prompt in questions} - set(weights))
    if missing:
        raise UserError(f"prompt sources without a weight: {', '.join(missing)}; name them in weights")
    drawn = {name: weight for name, weight in weights.items() if weight > 0 and name in pools}
    if not drawn:
        raise UserError(f"weights={dict(weights)}: no source with items has a weight above 0")
    return _draw(random.Random(seed), n, pools, drawn)


def _draw(
    rng: random.Random, n: int, pools: dict[str, list[Prompt]], weights: dict[str, float]
) -> Iterator[Prompt]:
    waiting: dict[str, list[Prompt]] = {name: [] for name in weights}
    for _ in range(n):
        (name,) = rng.choices(list(weights), list(weights.values()))
        if not waiting[name]:
            waiting[name] = rng.sample(pools[name], len(pools[name]))
        yield waiting[name].pop()


def _to_complete(record: dict) -> str:
    """An MBPP record as the head of a function: imports, signature, and a docstring of its task and two examples."""
    functions = [node for node in ast.parse(record["code"]).body if isinstance(node, ast.FunctionDef)]
    # The code may hold helpers; the tests call the function that the task is about.
    wanted = next((f for f in functions if f"{f.name}(" in record["test_list"][0]), functions[-1])
    head = "".join(f"{line}\n" for line in record["test_imports"])
    examples = "".join(f"    {line}\n" for test in record["test_list"][:2] for line in _example(test))
    return (
        f"{head}\n\ndef {wanted.name}({ast.unparse(wanted.args)}):\n"
        f'    """ {record["prompt"]}\n{examples}    """\n'
    )


def _example(test: str) -> tuple[str, ...]:
    """``assert f(1) == 2`` as a doctest's two lines; a test of another shape as it is."""
    statement = ast.parse(test).body[0]
    check = statement.test if isinstance(statement, ast.Assert) else None
    if isinstance(check, ast.Compare) and len(check.ops) == 1 and isinstance(check.ops[0], ast.Eq):
        return f">>> {ast.unparse(check.left)}", ast.unparse(check.comparators[0])
    return (test,)
