"""Measures prompt after prompt, or batch after batch: all strategies each, in an order shuffled by seed, so that drift hits all alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.decoding import decode_cell, decode_together, request_of
from harness.engines.base import Engine
from harness.records import Request, Sampling
from harness.store import Cell, Key
from harness.suites import Row

# The messages so far; None once a turn has failed.
Conversation = list[dict[str, str]] | None

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
    ``round_times`` False leaves the phases of the rounds untimed. ``batch`` prompts are decoded at once, 1: each alone.
    """

    rows: Sequence[Row]
    strategies: Sequence[str]
    sampling: Sampling
    repetitions: int
    seed: int
    history_of: str | None = None
    round_times: bool = True
    batch: int = 1

    @property
    def cells(self) -> int:
        return sum(len(row.turns) for row in self.rows) * len(self.strategies) * self.repetitions

    def sampling_of(self, repetition: int) -> Sampling:
        return replace(self.sampling, seed=self.sampling.seed + repetition)

    def groups(self) -> list[Sequence[Row]]:
        """The rows that are decoded together, in the suite's order; the last group may be smaller."""
        return [self.rows[begin : begin + self.batch] for begin in range(0, len(self.rows), self.batch)]

    def keys(self) -> Iterator[Key]:
        """Every cell's key, in the order of measuring."""
        for repetition in range(self.repetitions):
            for group in self.groups():
                for turn, rows in enumerate(turns_of(group)):
                    for strategy in self.order(group, repetition):
                        for row in rows:
                            yield Key(row.id, turn, strategy, repetition)

    def order(self, group: Sequence[Row], repetition: int) -> list[str]:
        """The strategies in this group's and repetition's order, a function of the seed alone."""
        shuffled, ids = list(self.strategies), " ".join(row.id for row in group)
        random.Random(f"{self.seed} {ids} {repetition}").shuffle(shuffled)
        return shuffled


def turns_of(group: Sequence[Row]) -> list[list[Row]]:
    """For each turn the rows that have it: later turns of a batch are a batch again, without conversations that are over."""
    return [[row for row in group if turn < len(row.turns)] for turn in range(max(len(row.turns) for row in group))]


def warm_up(engine: Engine, schedule: Schedule, prompts: int) -> None:
    """Let every strategy decode ``prompts`` prompts that are not measured, or as many batches of every size that will come."""
    sizes = {len(rows) for group in schedule.groups() for rows in turns_of(group)}
    for number in range(prompts):
        for size in sorted(sizes, reverse=True):
            words = [WARMUP_PROMPTS[(number + place) % len(WARMUP_PROMPTS)] for place in range(size)]
            for strategy in schedule.strategies:
                try:
                    _warm_up(engine, schedule, strategy, words)
                except Exception:
                    pass  # its cells will fail too, and say why


def _warm_up(engine: Engine, schedule: Schedule, strategy: str, words: Sequence[str]) -> None:
    conversations = [followed([], question) for question in words]
    requests = [request_of(engine, messages, schedule.sampling, schedule.round_times, alone=False) for messages in conversations]
    if schedule.batch > 1:
        engine.decode_batch(strategy, requests)
    else:
        engine.decode(strategy, *requests)


def measure(
    engine: Engine, schedule: Schedule, finished: Mapping[Key, Cell] | None = None, session: int = 0
) -> Iterator[list[Cell]]:
    """Every cell of the schedule that is not ``finished``, as it is done, those of a batch together. One that fails has a reason.

    Finished cells give later turns their history, by their stored texts; those that failed stay failed. Batches are those of the
    schedule and not of what is missing: one that was stored in part is decoded again as a whole, and gives what is missing.
    """
    finished, order = finished or {}, 0
    for repetition in range(schedule.repetitions):
        for number, group in enumerate(schedule.groups()):
            # What each strategy's conversations hold so far, by whose answers they are and by row.
            histories: dict[str, dict[str, Conversation]] = {name: {row.id: [] for row in group} for name in schedule.strategies}
            for turn, rows in enumerate(turns_of(group)):
                answers: dict[str, dict[str, Conversation]] = {}
                for strategy in schedule.order(group, repetition):
                    keys = [Key(row.id, turn, strategy, repetition) for row in rows]
                    cells = [Cell(key, row.category, order + i, session=session) for i, (key, row) in enumerate(zip(keys, rows))]
                    history, answers[strategy] = histories[schedule.history_of or strategy], {}
                    asked = [followed(history[row.id], row.turns[turn]) for row in rows]
                    if missing := [key for key in keys if key not in finished]:
                        cells = _decoded(engine, schedule, number, cells, asked)
                        yield [cell for cell in cells if cell.key in missing]
                    for key, messages, cell in zip(keys, asked, cells):
                        cell = finished.get(key, cell)
                        answered = {"role": "assistant", "content": cell.text}
                        answers[strategy][key.prompt] = None if cell.failure else [*messages, answered]
                    order += len(rows)
                histories = answers


def followed(history: Conversation, question: str) -> Conversation:
    """A conversation with its next question."""
    return None if history is None else [*history, {"role": "user", "content": question}]


def _decoded(engine: Engine, schedule: Schedule, number: int, cells: Sequence[Cell], asked: Sequence[Conversation]) -> list[Cell]:
    """``cells``, one strategy's, with its answers to ``asked``: batch ``number``, or one request alone."""
    sampling, alone, begun = schedule.sampling_of(cells[0].key.repetition), schedule.batch == 1, time.time()
    requests = [asking(engine, messages, sampling, schedule.round_times, alone) for messages in asked]
    if alone:
        return [decode_cell(engine, replace(cell, started_at=begun), request) for cell, request in zip(cells, requests)]
    return decode_together(engine, [replace(cell, started_at=begun, batch=number) for cell in cells], requests)


class TurnBefore(Exception):
    """A conversation cannot go on: it has no answer to go on from."""


def asking(engine: Engine, messages: Conversation, sampling: Sampling, round_times: bool, alone: bool) -> Callable[[], Request]:
    """What makes the request for the next answer of a conversation. It raises ``TurnBefore`` where a turn has failed."""

    def request() -> Request:
        if messages is None:
            raise TurnBefore("the turn before this one failed")
        return request_of(engine, messages, sampling, round_times, alone)

    return request
