"""When each phase of a round ended, without making the round wait for the clock."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from kernels import on_gpu

PHASES = ("draft", "build", "verify", "commit")
MARKS = ("begin", *PHASES)


class RoundClock:
    """Marks of every round of one batch. ``seconds`` turns them into durations, after the last round.

    On a CPU a mark is the host's clock. On a GPU it is a kernel in the stream that writes the device's clock into a ring of
    ``most`` rounds: nothing waits for it, it can be captured, and nobody reads the ring before the last token is out.
    Without ``wanted`` nothing is marked at all.
    """

    def __init__(self, device: torch.device, wanted: bool, most: int) -> None:
        self.wanted = wanted
        self._marked: set[str] = set()
        self._rounds: list[dict[str, float]] = []
        self._ring: Tensor | None = None
        self._round = torch.full((1,), -1, device=device)
        if wanted and on_gpu(self._round):
            self._ring = torch.zeros(most, len(MARKS), dtype=torch.int64, device=device)

    def reset(self) -> None:
        """Forget all rounds. What is marked of a round may stay: in a captured round nobody marks again."""
        self._rounds = []
        if self._ring is not None:
            self._round.fill_(-1)

    def begin(self) -> None:
        if self._ring is not None:
            self._round += 1
        elif self.wanted:
            self._rounds.append({})
        self.mark("begin")

    def mark(self, phase: str) -> None:
        """``phase`` ended here. A round whose draft is not marked has built nothing: its draft lasts as long as both."""
        if self._ring is not None:
            from kernels.triton_kernels.stamp import stamp

            self._marked.add(phase)
            stamp(self._ring, self._round, MARKS.index(phase))
        elif self.wanted:
            self._rounds[-1][phase] = time.perf_counter()

    def seconds(self) -> list[dict[str, float]]:
        """For every round ``{"draft_s": ..., "build_s": ..., "verify_s": ..., "commit_s": ...}`` [s]; empty without ``wanted``."""
        return [_durations(marks) for marks in self._rounds if marks] if self._ring is None else self._read()

    def _read(self) -> list[dict[str, float]]:
        told = self._ring[: int(self._round) + 1].tolist()
        named = [{mark: at / 1e9 for mark, at in zip(MARKS, ns, strict=True) if mark in self._marked} for ns in told]
        return [_durations(marks) for marks in named]


def _durations(marks: dict[str, float]) -> dict[str, float]:
    ends = {"draft": marks["build"], **marks}
    edges = [ends["begin"], *(ends[phase] for phase in PHASES)]
    return {f"{phase}_s": later - earlier for phase, earlier, later in zip(PHASES, edges, edges[1:])}
