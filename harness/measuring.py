"""Measures cell after cell: for each prompt all strategies, in an order shuffled by seed, so that drift hits all alike."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness import memory
from harness.engines.base import Engine
from harness.records import Request, Sampling
from harness.store import Cell, Failure, Key
from harness.suites import Row

# Decoded before anything is measured, so that no measured prompt pays for compiling, page faults or cold caches.
WARMUP_PROMPTS = (
    "Describe a walk through a forest in autumn.",
    "List the planets of the solar system with one fact about each.",
    "Explain how bread is made, step by step.",
    "Write a short letter to a friend who moved away.",
)


@dataclass(frozen=True)
class Schedule:
    """What is measured and how often. ``seed`` shuffles; repetition r samples with ``sampling.seed + r``.

    ``history_of`` names the strategy whose answers are every strategy's history; ``None``: each has its own.
    """

    rows: Sequence[Row]
    strategies: Sequence[str]
    sampling: Sampling
    repetitions: int
    seed: int
    history_of: str | None = None

    @property
    def cells(self) -> int:
        return sum(len(row.turns) for row in self.rows) * len(self.strategies) * self.repetitions

    def order(self, row: Row, repetition: int) -> list[str]:
        """The strategies in this prompt's and repetition's order, a function of the seed alone."""
        shuffled = list(self.strategies)
        random.Random(f"{self.seed} {row.id} {repetition}").shuffle(shuffled)
        return shuffled


def warm_up(engine: Engine, schedule: Schedule, prompts: int) -> None:
    """Let every strategy decode ``prompts`` prompts that are not measured."""
    for number in range(prompts):
        messages = [{"role": "user", "content": WARMUP_PROMPTS[number % len(WARMUP_PROMPTS)]}]
        for strategy in schedule.strategies:
            try:
                engine.decode(strategy, _request(engine, messages, schedule.sampling))
            except Exception:
                pass  # its cells will fail too, and say why


def measure(engine: Engine, schedule: Schedule) -> Iterator[Cell]:
    """Every cell of the schedule, as each is finished. A cell that fails is a cell with a reason."""
    order = 0
    for repetition in range(schedule.repetitions):
        sampling = replace(schedule.sampling, seed=schedule.sampling.seed + repetition)
        for row in schedule.rows:
            # What each strategy's conversation holds so far, by whose answers they are; None once one has failed.
            histories: dict[str, list[dict[str, str]] | None] = {name: [] for name in schedule.strategies}
            for turn, question in enumerate(row.turns):
                asked = {"role": "user", "content": question}
                answers: dict[str, list[dict[str, str]] | None] = {}
                for strategy in schedule.order(row, repetition):
                    key = Key(row.id, turn, strategy, repetition)
                    cell = Cell(key, row.category, order)
                    history = histories[schedule.history_of or strategy]
                    if history is None:
                        cell = replace(cell, failure=Failure("TurnBefore", "the turn before this one failed"))
                    else:
                        cell = _decode(engine, cell, [*history, asked], sampling)
                    answered = {"role": "assistant", "content": cell.text}
                    answers[strategy] = None if cell.failure else [*history, asked, answered]
                    yield cell
                    order += 1
                histories = answers


def _decode(engine: Engine, cell: Cell, messages: list[dict[str, str]], sampling: Sampling) -> Cell:
    try:
        request = _request(engine, messages, sampling)
        ids = " ".join(map(str, request.prompt_ids))
        sha256 = hashlib.sha256(ids.encode()).hexdigest()
        cell = replace(cell, prompt_tokens=len(request.prompt_ids), prompt_sha256=sha256)
        memory.reset_peaks()
        decoded = engine.decode(cell.key.strategy, request)
        host, device = memory.host_peak_bytes(), memory.device_peak_bytes()
        text = engine.text(list(decoded.tokens))
    except Exception as error:  # whatever an engine raises is this cell's result, and the run goes on
        return replace(cell, failure=Failure(type(error).__name__, " ".join(str(error).split())))
    return replace(cell, decoded=decoded, text=text, host_peak_bytes=host, device_peak_bytes=device)


def _request(engine: Engine, messages: list[dict[str, str]], sampling: Sampling) -> Request:
    return Request(tuple(engine.render(messages)), tuple(engine.end_tokens), sampling)
