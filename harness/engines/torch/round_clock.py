"""When each phase of a round ended, without making the round wait for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

PHASES = ("draft", "build", "verify", "commit")


class RoundClock:
    """Marks of every round of one request. ``seconds`` turns them into durations, after the request.

    On a CPU a mark is the host's clock. On a GPU it is an event in the stream: the round goes on at once, and nobody
    asks when the event came to pass before the last token is out. Without ``wanted`` nothing is marked at all.
    """

    def __init__(self, device: torch.device, wanted: bool) -> None:
        self._now: Callable[[], Any] = _event if device.type == "cuda" else time.perf_counter
        self._wanted = wanted
        self._rounds: list[dict[str, Any]] = []

    def begin(self) -> None:
        if self._wanted:
            self._rounds.append({"begin": self._now()})

    def mark(self, phase: str) -> None:
        """``phase`` ended here. A round whose draft is not marked has built nothing: its draft lasts as long as both."""
        if self._wanted:
            self._rounds[-1][phase] = self._now()

    def seconds(self) -> list[dict[str, float]]:
        """For every round ``{"draft_s": ..., "build_s": ..., "verify_s": ..., "commit_s": ...}`` [s]; empty without ``wanted``."""
        if self._rounds and isinstance(self._rounds[-1]["begin"], torch.cuda.Event):
            self._rounds[-1]["commit"].synchronize()
        return [_durations(marks) for marks in self._rounds]


def _durations(marks: dict[str, Any]) -> dict[str, float]:
    ends = {"draft": marks["build"], **marks}
    edges = [ends["begin"], *(ends[phase] for phase in PHASES)]
    return {f"{phase}_s": _between(*pair) for phase, pair in zip(PHASES, zip(edges, edges[1:]), strict=True)}


def _between(earlier: Any, later: Any) -> float:
    if isinstance(earlier, torch.cuda.Event):
        return earlier.elapsed_time(later) / 1000
    return later - earlier


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
