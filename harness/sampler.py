"""Watches the machine while a run lasts: clocks, temperature, power and load, a line every second."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from pathlib import Path
from typing import Any

import psutil

from harness import lines, nvidia

INTERVAL_S = 1.0
_THROTTLE_COUNTERS = "/sys/devices/system/cpu"


class Sampler:
    """Writes ``samples.jsonl`` from a thread of its own, and says whether clocks were held back at some time.

    Every sample has ``at`` (seconds since 1970), ``load_1m``, ``cpu_busy_percent`` (of all cores since the last sample),
    ``cpu_mhz``, ``gpus`` (as ``nvidia.Gpus.sample``) and ``throttled``.
    """

    def __init__(self, path: Path, interval_s: float = INTERVAL_S) -> None:
        self._path, self._interval_s = path, interval_s
        self._history: list[tuple[float, bool | None]] = []
        self._one_at_a_time, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._driver = nvidia.driver()
        self._gpus = self._driver.__enter__()
        self._throttles = cpu_throttles()
        psutil.cpu_percent()
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join()
        self.sample()
        self._driver.__exit__(None, None, None)

    def throttled(self, since: float) -> bool | None:
        """Whether any sample from the last one before ``since`` up to now saw clocks held back; ``None``: unknown."""
        self.sample()
        first = max(bisect_right(self._history, since, key=lambda sample: sample[0]) - 1, 0)
        seen = {held for _, held in self._history[first:]}
        return True if True in seen else False if False in seen else None

    def sample(self) -> None:
        """One line now, unless the last one is fresh."""
        with self._one_at_a_time:
            if self._history and time.time() - self._history[-1][0] < self._interval_s / 4:
                return
            found = self._look()
            self._history.append((found["at"], found["throttled"]))
            lines.append(self._path, found)

    def _watch(self) -> None:
        while not self._over.wait(self._interval_s):
            self.sample()

    def _look(self) -> dict[str, Any]:
        throttles = cpu_throttles()
        gpus = self._gpus.sample()
        held = [nvidia.slowed(gpu) for gpu in gpus]
        if throttles is not None and self._throttles is not None:
            held.append(throttles > self._throttles)
        self._throttles = throttles
        frequency = psutil.cpu_freq()
        return {
            "at": time.time(),
            "load_1m": psutil.getloadavg()[0],
            "cpu_busy_percent": psutil.cpu_percent(),
            "cpu_mhz": frequency.current if frequency else None,
            "gpus": gpus,
            "throttled": True if True in held else False if False in held else None,
        }


def cpu_throttles() -> int | None:
    """How often the CPU's packages were slowed by heat since boot; ``None`` where the kernel does not count."""
    found = sorted(Path(_THROTTLE_COUNTERS).glob("cpu[0-9]*/thermal_throttle/package_throttle_count"))
    try:
        return sum(int(path.read_text()) for path in found) if found else None
    except (OSError, ValueError):
        return None
