"""From what is asked to finished cells: one request, or several as one batch. Whatever goes wrong is a cell's failure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from harness import memory
from harness.engines.base import Engine, room_behind
from harness.records import Decoded, Request, Sampling
from harness.store import Cell, Failure


def decode_cell(engine: Engine, cell: Cell, request: Callable[[], Request]) -> Cell:
    """``cell`` with what the engine made of ``request()``; whatever either raises is the cell's failure."""
    try:
        asked = request()
        cell = _asked(cell, asked)
        memory.reset_peaks()
        decoded = engine.decode(cell.key.strategy, asked)
        return _answered(engine, cell, decoded, *_peaks(engine))
    except Exception as error:  # whatever an engine raises is this cell's result, and the run goes on
        return _failed(cell, error)


def decode_together(engine: Engine, cells: Sequence[Cell], requests: Sequence[Callable[[], Request]]) -> list[Cell]:
    """``cells``, all of one strategy, with what the engine made of their ``requests`` as one batch; peaks are the batch's.

    A request that cannot be made, or that the context has no room for, fails alone and is not handed over. What the engine
    raises is the failure of each of the others.
    """
    found, asked = list(cells), {}
    for place, request in enumerate(requests):
        try:
            made = request()
            found[place] = _asked(found[place], made)
            room_behind(made, engine.context_length)
            asked[place] = made
        except Exception as error:
            found[place] = _failed(found[place], error)
    for place in asked:
        found[place] = replace(found[place], batch_size=len(asked))
    try:
        memory.reset_peaks()
        answers = engine.decode_batch(cells[0].key.strategy, list(asked.values())) if asked else []
        peaks = _peaks(engine)
        if len(answers) != len(asked):
            raise ValueError(f"the engine gave {len(answers)} answers to {len(asked)} requests")
        done = {place: _answered(engine, found[place], answer, *peaks) for place, answer in zip(asked, answers)}
    except Exception as error:
        done = {place: _failed(found[place], error) for place in asked}
    return [done.get(place, cell) for place, cell in enumerate(found)]


def _asked(cell: Cell, request: Request) -> Cell:
    return replace(cell, prompt_tokens=len(request.prompt_ids), prompt_sha256=prompt_sha256(request.prompt_ids))


def _answered(engine: Engine, cell: Cell, decoded: Decoded, host: int, device: int) -> Cell:
    text = engine.text(list(decoded.tokens)) if decoded.text is None else decoded.text
    return replace(cell, decoded=decoded, text=text, host_peak_bytes=host, device_peak_bytes=device)


def _failed(cell: Cell, error: Exception) -> Cell:
    return replace(cell, failure=Failure(type(error).__name__, " ".join(str(error).split())))


def _peaks(engine: Engine) -> tuple[int, int]:
    return engine.peaks() if hasattr(engine, "peaks") else (memory.host_peak_bytes(), memory.device_peak_bytes())


def request_of(
    engine: Engine, messages: list[dict[str, str]], sampling: Sampling, round_times: bool = True, alone: bool = True
) -> Request:
    ids, ends = tuple(engine.render(messages)), tuple(engine.end_tokens)
    return Request(ids, ends, sampling, round_times, tuple(messages), alone)


def prompt_sha256(prompt_ids: Sequence[int]) -> str:
    """Over the token ids in decimal with spaces between."""
    return hashlib.sha256(" ".join(map(str, prompt_ids)).encode()).hexdigest()
