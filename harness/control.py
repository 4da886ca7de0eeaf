"""After the last cell: the target's margin wherever outputs part, and the baseline decoded again as a control."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.decoding import decode_cell, decode_together, prompt_sha256, request_of
from harness.engines.base import Engine
from harness.losslessness import Divergence, Setting, losslessness
from harness.measuring import Schedule
from harness.records import Request
from harness.store import CONTROL, Cell, Key, Store

MARGINS = 64  # of each strategy, so that a run with thousands of first differences ends
CONTROLS = 8


def examine(engine: Engine, schedule: Schedule, store: Store, setting: Setting, session: int = 0) -> dict[Key, float]:
    """The margin of each cell's first difference. Control cells that ``store`` lacks are decoded and stored."""
    cells = list(store.cells())
    comparisons = losslessness(cells, [], setting).strategies.values()
    asked = Conversations(engine, schedule, cells, setting.baseline)
    margins: dict[Key, float] = {}
    if hasattr(engine, "margin"):
        for comparison in comparisons:
            margins |= _margins(engine, asked, comparison.divergences[:MARGINS])
    if not setting.repeats_itself:
        parted = {asked.own(d.key) for comparison in comparisons for d in comparison.divergences}
        wanted = [key for key in asked.baseline if key in parted][:CONTROLS]
        finished = {cell.key for cell in store.cells(CONTROL)}
        for cell in _control(engine, asked, [key for key in wanted if key not in finished], session):
            store.append(cell, name=CONTROL)
    return margins


class Conversations:
    """The baseline's cells, and the requests behind them, made again from the suite and the stored answers."""

    def __init__(self, engine: Engine, schedule: Schedule, cells: Sequence[Cell], baseline: str) -> None:
        self._engine, self._schedule, self._name = engine, schedule, baseline
        self.alone = schedule.batch == 1
        self._rows = {row.id: row for row in schedule.rows}
        self.baseline: Mapping[Key, Cell] = {cell.key: cell for cell in cells if cell.key.strategy == baseline}

    def own(self, key: Key) -> Key:
        """The baseline's cell of the same prompt, turn and repetition."""
        return key._replace(strategy=self._name)

    def batch_of(self, key: Key) -> tuple[Key, ...]:
        """The baseline's cells that were decoded with ``key``, itself among them, in their order in the batch."""
        if self.alone:
            return (key,)
        at = (self.baseline[key].batch, key.turn, key.repetition)
        held = [c for c in self.baseline.values() if c.batch_size and (c.batch, c.key.turn, c.key.repetition) == at]
        return tuple(cell.key for cell in sorted(held, key=lambda cell: cell.order))

    def request(self, key: Key) -> Request | None:
        """What the baseline was asked there; ``None`` when its prompt cannot be made again token for token."""
        own, questions = self.own(key), self._rows[key.prompt].turns
        messages = []
        for turn in range(key.turn):
            answer = self.baseline[own._replace(turn=turn)].text
            messages += [{"role": "user", "content": questions[turn]}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": questions[key.turn]})
        request = request_of(self._engine, messages, self._schedule.sampling_of(key.repetition), alone=self.alone)
        return request if prompt_sha256(request.prompt_ids) == self.baseline[own].prompt_sha256 else None


def _margins(engine: Engine, asked: Conversations, divergences: Sequence[Divergence]) -> dict[Key, float]:
    margins: dict[Key, float] = {}
    known: dict[tuple, float | None] = {}
    for divergence in divergences:
        request = asked.request(divergence.key)
        if request is None:
            continue
        prefix = asked.baseline[asked.own(divergence.key)].decoded.tokens[: divergence.index]
        place = (request.prompt_ids, prefix)
        if place not in known:
            known[place] = _margin(engine, *place)
        if known[place] is not None:
            margins[divergence.key] = known[place]
    return margins


def _margin(engine: Engine, prompt_ids: Sequence[int], prefix: Sequence[int]) -> float | None:
    try:
        return float(engine.margin(prompt_ids, prefix))
    except Exception:  # out of memory in one long pass, say: the report tells how many margins it has
        return None


def _control(engine: Engine, asked: Conversations, keys: Sequence[Key], session: int) -> Iterator[Cell]:
    """The baseline's cells of ``keys`` again, each decoded as it was: alone, or in its batch."""
    order = 0
    for members in dict.fromkeys(map(asked.batch_of, keys)):
        requests = {key: request for key in members if (request := asked.request(key)) is not None}
        before = [asked.baseline[key] for key in requests]
        cells = [Cell(cell.key, cell.category, order, session=session, started_at=time.time(), batch=cell.batch) for cell in before]
        makers = [lambda request=request: request for request in requests.values()]
        if asked.alone:
            cells = [decode_cell(engine, cell, make) for cell, make in zip(cells, makers)]
        else:
            cells = decode_together(engine, cells, makers)
        for cell in cells:
            if cell.key in keys:
                yield replace(cell, order=order)
                order += 1
