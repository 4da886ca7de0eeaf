"""Measures cell after cell: for each prompt all strategies, in an order shuffled by seed, so that drift hits all alike."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    ``round_times`` False leaves the phases of the rounds untimed.
    """

    rows: Sequence[Row]
    strategies: Sequence[str]
    sampling: Sampling
    repetitions: int
    seed: int
    history_of: str | None = None
    round_times: bool = True

    @property
    def cells(self) -> int:
        return sum(len(row.turns) for row in self.rows) * len(self.strategies) * self.repetitions

    def sampling_of(self, repetition: int) -> Sampling:
        return replace(self.sampling, seed=self.sampling.seed + repetition)

    def keys(self) -> Iterator[Key]:
        """Every cell's key, in the order of measuring."""
        for repetition in range(self.repetitions):
            for row in self.rows:
                for turn in range(len(row.turns)):
                    for strategy in self.order(row, repetition):
                        yield Key(row.id, turn, strategy, repetition)

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
                request = request_of(engine, messages, schedule.sampling, schedule.round_times, alone=False)
                engine.decode(strategy, request)
            except Exception:
                pass  # its cells will fail too, and say why


def measure(
    engine: Engine, schedule: Schedule, finished: Mapping[Key, Cell] | None = None, session: int = 0
) -> Iterator[Cell]:
    """Every cell of the schedule that is not ``finished``, as it is done. A cell that fails is a cell with a reason.

    Finished cells give later turns their history, by their stored texts; those that failed stay failed.
    """
    order = 0
    for repetition in range(schedule.repetitions):
        sampling = schedule.sampling_of(repetition)
        for row in schedule.rows:
            # What each strategy's conversation holds so far, by whose answers they are; None once one has failed.
            histories: dict[str, list[dict[str, str]] | None] = {name: [] for name in schedule.strategies}
            for turn, question in enumerate(row.turns):
                asked = {"role": "user", "content": question}
                answers: dict[str, list[dict[str, str]] | None] = {}
                for strategy in schedule.order(row, repetition):
                    key = Key(row.id, turn, strategy, repetition)
                    history = histories[schedule.history_of or strategy]
                    cell = (finished or {}).get(key)
                    if cell is None:
                        cell = Cell(key, row.category, order, session=session, started_at=time.time())
                        cell = measured(engine, cell, history, asked, sampling, schedule.round_times)
                        yield cell
                    answered = {"role": "assistant", "content": cell.text}
                    answers[strategy] = None if cell.failure else [*history, asked, answered]
                    order += 1
                histories = answers


def measured(engine: Engine, cell: Cell, history, asked, sampling: Sampling, round_times: bool, alone: bool = True) -> Cell:
    """``cell`` with the answer to ``asked`` behind ``history``, which is ``None`` where a turn before has failed."""
    if history is None:
        return replace(cell, failure=Failure("TurnBefore", "the turn before this one failed"))
    return decode_cell(engine, cell, lambda: request_of(engine, [*history, asked], sampling, round_times, alone))


def decode_cell(engine: Engine, cell: Cell, request: Callable[[], Request]) -> Cell:
    """``cell`` with what the engine made of ``request()``; whatever either raises is the cell's failure."""
    try:
        asked = request()
        cell = replace(cell, prompt_tokens=len(asked.prompt_ids), prompt_sha256=prompt_sha256(asked.prompt_ids))
        memory.reset_peaks()
        decoded = engine.decode(cell.key.strategy, asked)
        host, device = engine.peaks() if hasattr(engine, "peaks") else (memory.host_peak_bytes(), memory.device_peak_bytes())
        text = engine.text(list(decoded.tokens)) if decoded.text is None else decoded.text
    except Exception as error:  # whatever an engine raises is this cell's result, and the run goes on
        return replace(cell, failure=Failure(type(error).__name__, " ".join(str(error).split())))
    return replace(cell, decoded=decoded, text=text, host_peak_bytes=host, device_peak_bytes=device)


def request_of(
    engine: Engine, messages: list[dict[str, str]], sampling: Sampling, round_times: bool = True, alone: bool = True
) -> Request:
    ids, ends = tuple(engine.render(messages)), tuple(engine.end_tokens)
    return Request(ids, ends, sampling, round_times, tuple(messages), alone)


def prompt_sha256(prompt_ids: Sequence[int]) -> str:
    """Over the token ids in decimal with spaces between."""
    return hashlib.sha256(" ".join(map(str, prompt_ids)).encode()).hexdigest()
