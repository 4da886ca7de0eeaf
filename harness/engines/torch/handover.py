"""How a round's report reaches the host: at once on a CPU, one round late on a GPU, which meanwhile runs the next."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from kernels import on_gpu


class Handover:
    """``give`` the report after each round; ``take`` what a round said once its turn has come, until then ``None``."""

    def __init__(self, report: Tensor) -> None:
        self._report = report
        self._late = int(on_gpu(report))
        self._given: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self._free: list[tuple[Tensor, torch.cuda.Event | None]] = []

    def give(self) -> None:
        copy, copied = self._free.pop() if self._free else self._new()
        copy.copy_(self._report, non_blocking=True)
        if copied is not None:
            copied.record()
        self._given.append((copy, copied))

    def take(self) -> list[list[int]] | None:
        if len(self._given) <= self._late:
            return None
        copy, copied = self._given.popleft()
        if copied is not None:
            copied.synchronize()
        self._free.append((copy, copied))
        return copy.tolist()

    def _new(self) -> tuple[Tensor, torch.cuda.Event | None]:
        if not self._report.is_cuda:
            return torch.empty_like(self._report), None
        return torch.empty_like(self._report, device="cpu", pin_memory=True), torch.cuda.Event()
