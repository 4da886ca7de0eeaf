"""Is other work running on this machine? Speeds measured meanwhile would be those of a shared one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import psutil

SHARE = 0.25  # of the usable cores; with more in use by others the machine counts as busy
_IDLE = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is also the user's


class OtherWork:
    """Watches the CPU from when it is made, such as while a model is loaded.

    The load average would not do alone: it counts this process, and remembers for minutes what has ended.
    """

    def __init__(self) -> None:
        self._begun = _times()

    def cores(self) -> float:
        """CPU time of all processes but this one and its children / time passed [core]."""
        passed, busy, own = (now - then for now, then in zip(_times(), self._begun, strict=True))
        return max(busy - own, 0.0) / max(passed, 1e-3)


def _times() -> tuple[float, float, float]:
    """Clock, CPU time of the whole machine, CPU time of this process and its children [s]."""
    machine = psutil.cpu_times()
    busy = sum(machine) - sum(getattr(machine, name, 0.0) for name in _IDLE)
    me = psutil.Process()
    own = sum(me.cpu_times()[:4])  # user and system, then those of children that have ended
    for child in me.children(recursive=True):
        try:
            own += sum(child.cpu_times()[:2])
        except psutil.Error:  # it has ended meanwhile
            pass
    return time.perf_counter(), busy, own


def is_busy(cpu: Mapping[str, Any]) -> bool:
    """Whether the environment's ``cpu`` record tells of other work; without a figure for it the load over 5 minutes."""
    load, cores = cpu.get("load_average") or [0, 0, 0], cpu.get("usable_cores") or 1
    other = cpu.get("other_work_cores")
    return (load[1] if other is None else other) > SHARE * cores


def told(cpu: Mapping[str, Any]) -> str | None:
    """A line for the terminal when the machine is busy."""
    if not is_busy(cpu):
        return None
    load = " ".join(f"{value:.1f}" for value in cpu["load_average"])
    used = f"other work keeps {cpu['other_work_cores']:.1f} of {cpu['usable_cores']} cores (load {load})"
    return f"the machine is busy: {used}; stop that and start anew, or trust the ratios more than the speeds"


def told_after(cores: float, usable: int) -> str | None:
    """A line for the terminal when other work kept ``cores`` of the ``usable`` ones while cells were measured."""
    if cores <= SHARE * usable:
        return None
    return f"the machine was busy meanwhile: other work kept {cores:.1f} of {usable} cores on average; trust the ratios more than the speeds"
