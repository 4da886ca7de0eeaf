"""Are the numbers of a clean run right? Each is counted or worked out again from the stored cells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
from benchmarks.fuzz.calls import Answer
from harness.metrics import pooled_acceptance_committed
from harness.schemas import fill
from harness.store import Cell, Store
from harness.suites import SuiteConfig, load

STATED = {"stop", "length", "context"}


def wrong_numbers(answer: Answer, folder: Path) -> list[str]:
    """What is wrong with a run that ended well; ``folder`` is where it was started. Help and the like have no run."""
    if not answer.out.splitlines() or not answer.out.splitlines()[-1].startswith('{"run": '):
        return []
    last = json.loads(answer.out.splitlines()[-1])
    return list(_problems(last, folder / last["run"], answer.status))


def _problems(last: dict[str, Any], folder: Path, status: int | None) -> Iterator[str]:
    run, store = harness.load(folder), Store(folder)
    cells, config = list(store.cells()), run.config
    suite = load(fill(SuiteConfig, "suite", config["suite"]))
    arms = list(last["strategies"])
    turns = sum(len(row.turns) for row in suite.rows)
    expected = turns * len(arms) * config["measure"]["repetitions"]
    if not len(cells) == len(run.cells) == len({cell.key for cell in cells}) == expected:
        yield f"{len(cells)} cells of {len({cell.key for cell in cells})} keys, and not {expected}"
    failed = [cell for cell in cells if cell.failure]
    if failed:
        yield f"{len(failed)} cells failed, {failed[0].failure.kind}: {failed[0].failure.message}"
    if bool(status) != (len(failed) == len(cells)):
        yield f"exit status {status} with {len(failed)} of {len(cells)} cells failed"
    for cell in cells:
        if cell.decoded:
            yield from (f"{cell.key}: {problem}" for problem in _of_cell(cell, config, run.environment))
    yield from _of_outputs(cells, config, run.environment)
    for name in arms:
        yield from _of_strategy(name, [c for c in cells if c.key.strategy == name], last["strategies"][name], run.summary["strategies"][name])


def _of_cell(cell: Cell, config: dict[str, Any], environment: dict[str, Any]) -> Iterator[str]:
    decoded, limit = cell.decoded, config["sampling"]["max_new_tokens"]
    tokens, ends = decoded.tokens, environment["engine"].get("end_tokens", [])
    if not 1 <= len(tokens) <= limit or decoded.finish_reason not in STATED:
        yield f"{len(tokens)} tokens of {limit}, {decoded.finish_reason}"
    if (decoded.finish_reason == "stop") != (tokens[-1] in ends) or set(tokens[:-1]) & set(ends):
        yield f"{decoded.finish_reason} behind token {tokens[-1]}"
    if 1 + sum(r.emitted for r in decoded.rounds) != len(tokens):
        yield "the rounds did not emit the tokens"
    for r in decoded.rounds:
        if not (0 <= r.accepted <= r.depth <= r.proposed and 1 <= r.emitted <= r.accepted + 1):
            yield f"a round that cannot be: {r}"
    times = [0.0, decoded.ttft_s, *(r.at_s for r in decoded.rounds)]
    if times != sorted(times) or decoded.end_s != times[-1]:
        yield "times out of order"


def _of_outputs(cells: list[Cell], config: dict[str, Any], environment: dict[str, Any]) -> Iterator[str]:
    """Greedy decoding in fp32 has one answer to a prompt, whoever drafts and however often."""
    if config["sampling"]["temperature"] == 0 and environment["engine"].get("dtype") == "float32":
        answers: dict[tuple, set] = {}
        for cell in cells:
            if cell.decoded:
                answers.setdefault((cell.key.prompt, cell.prompt_sha256), set()).add(cell.decoded.tokens)
        yield from (f"{prompt}: {len(found)} answers in greedy fp32" for (prompt, _), found in answers.items() if len(found) > 1)


def _of_strategy(name: str, cells: list[Cell], headline: dict[str, Any], figures: dict[str, Any]) -> Iterator[str]:
    if any(headline[key] != figures[key] for key in headline):
        yield f"{name}: the last line and summary.json differ"
    length = pooled_acceptance_committed([cell.decoded for cell in cells if cell.decoded])
    if length != headline["acceptance_length"] or (length is not None and length < 1):
        yield f"{name}: acceptance length {headline['acceptance_length']}, counted {length}"
    if figures["cells"] != len(cells):
        yield f"{name}: {figures['cells']} cells, counted {len(cells)}"
    value, low, high = headline["speedup"] or (None, None, None)
    if value is not None and not (0 < value and (low is None or low <= value <= high)):
        yield f"{name}: speedup {headline['speedup']}"
