"""An engine under load: many conversations at once, one strategy at a time, in blocks that alternate A B, B A."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness import measuring
from harness.arrivals import poisson_arrivals_s
from harness.block import Block
from harness.decoding import decode_cell
from harness.engines.base import Engine
from harness.measuring import Schedule, asking, followed
from harness.metrics import output_tokens
from harness.store import Cell, Key
from harness.suites import Row


@dataclass(frozen=True)
class Load:
    """Closed loop: ``concurrency`` conversations at a time, the next one begins when one ends. Open loop: conversations
    begin ``rate`` a second, at Poisson times, whether or not earlier ones have ended. One of the two is ``None``.
    """

    concurrency: int | None = None
    rate: float | None = None


def warm_up(engine: Engine, schedule: Schedule, load: Load, prompts: int) -> None:
    """``prompts`` prompts that are not measured, for every strategy, by as many askers at once as there will be."""
    for strategy in schedule.strategies:
        alone = replace(schedule, strategies=[strategy])
        askers = [_start(measuring.warm_up, engine, alone, prompts) for _ in range(load.concurrency or 1)]
        for asker in askers:
            asker.join()


def measure_under_load(
    engine: Engine,
    schedule: Schedule,
    load: Load,
    finished: Mapping[Key, Cell],
    session: int,
    ended: Callable[[Block], None],
) -> Iterator[Cell]:
    """Every cell of the schedule that is not ``finished``, as it is done; ``ended`` gets every block when it is over."""
    order = len(finished)
    for repetition in range(schedule.repetitions):
        # A B B A: what drifts from block to block hits both alike.
        for strategy in list(schedule.strategies)[:: -1 if repetition % 2 else 1]:
            before, answers = engine.counters(strategy), []
            for cell in _block(engine, schedule, load, strategy, repetition, finished, session):
                if cell.decoded:
                    answers.append(cell.decoded)
                yield replace(cell, order=order)
                order += 1
            if answers:
                drafting = engine.drafting_since(strategy, before, answers)
                ended(Block(strategy, repetition, session, len(answers), sum(map(output_tokens, answers)), drafting))


def _block(engine, schedule: Schedule, load: Load, strategy: str, repetition: int, finished, session: int) -> Iterator[Cell]:
    """The missing cells of one strategy and repetition, from conversations in threads that end with their turn or the process."""
    missing = {row: [key for key in _keys(row, strategy, repetition) if key not in finished] for row in schedule.rows}
    rows = [row for row, keys in missing.items() if keys]
    arrived: queue.SimpleQueue[Cell | BaseException] = queue.SimpleQueue()
    stop = threading.Event()

    def converse(row: Row) -> None:
        try:
            for cell in _conversation(engine, schedule, row, strategy, repetition, finished, session):
                arrived.put(cell)
                if stop.is_set():
                    return
        except BaseException as error:  # a fault of the program: told where the cells are waited for
            arrived.put(error)

    if load.concurrency:
        _closed_loop(rows, load.concurrency, converse, stop)
    else:
        _start(_open_loop, rows, poisson_arrivals_s(load.rate, len(rows), schedule.seed + repetition), converse, stop)
    try:
        for _ in range(sum(map(len, missing.values()))):
            cell = arrived.get()
            if isinstance(cell, BaseException):
                raise cell
            yield cell
    finally:
        stop.set()


def _closed_loop(rows: Sequence[Row], concurrency: int, converse: Callable[[Row], None], stop: threading.Event) -> None:
    waiting: queue.SimpleQueue[Row] = queue.SimpleQueue()
    for row in rows:
        waiting.put(row)

    def one_after_the_other() -> None:
        while not stop.is_set():
            try:
                row = waiting.get_nowait()
            except queue.Empty:
                return
            converse(row)

    for _ in range(min(concurrency, len(rows))):
        _start(one_after_the_other)


def _open_loop(rows: Sequence[Row], arrivals_s: Sequence[float], converse: Callable[[Row], None], stop: threading.Event) -> None:
    begun = time.perf_counter()
    for row, at_s in zip(rows, arrivals_s, strict=True):
        if stop.wait(max(0.0, begun + at_s - time.perf_counter())):
            return
        _start(converse, row)


def _conversation(engine, schedule: Schedule, row: Row, strategy: str, repetition: int, finished, session: int) -> Iterator[Cell]:
    """A row's turns in order, each after the answer before it; finished ones give their stored texts."""
    history: list[dict[str, str]] | None = []
    for key, question in zip(_keys(row, strategy, repetition), row.turns, strict=True):
        asked, cell = followed(history, question), finished.get(key)
        if cell is None:
            cell = Cell(key, row.category, order=0, session=session, started_at=time.time())
            cell = decode_cell(engine, cell, asking(engine, asked, schedule.sampling_of(repetition), schedule.round_times, alone=False))
            yield cell
        history = None if cell.failure else [*asked, {"role": "assistant", "content": cell.text}]


def _keys(row: Row, strategy: str, repetition: int) -> list[Key]:
    return [Key(row.id, turn, strategy, repetition) for turn in range(len(row.turns))]


def _start(work: Callable, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread
