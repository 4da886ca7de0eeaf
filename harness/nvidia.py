"""What an NVIDIA driver says of its GPUs: once for the record, and again and again while a run lasts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# Reasons for lower clocks that take speed away. Idling and clocks that the user chose are none of them.
SLOWING = ("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
_REASON = "nvmlClocksEventReason"


@contextmanager
def driver() -> Iterator[Gpus]:
    """The GPUs for as long as the block lasts; none without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield Gpus(None, [])
        return
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        yield Gpus(pynvml, _visible(pynvml, handles, os.environ.get("CUDA_VISIBLE_DEVICES")))
    finally:
        pynvml.nvmlShutdown()


class Gpus:
    """The GPUs that this process may use, as the driver knows them."""

    def __init__(self, nvml, handles: list) -> None:
        self._nvml, self._handles = nvml, handles

    def describe(self) -> list[dict[str, Any]]:
        """Name, driver, memory, and the limits and settings that stay as they are during a run."""
        nvml = self._nvml
        return [
            _answers(nvml, {
                "name": lambda: nvml.nvmlDeviceGetName(handle),
                "uuid": lambda: nvml.nvmlDeviceGetUUID(handle),
                "driver": lambda: nvml.nvmlSystemGetDriverVersion(),
                "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
                "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
                "power_limit_default_w": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000,
                "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
                "max_memory_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
                "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
            }) | state
            for handle, state in zip(self._handles, self.sample(), strict=True)
        ]  # fmt: skip

    def sample(self) -> list[dict[str, Any]]:
        """Clocks [MHz], temperature [°C], power [W], use [%] and reasons for lower clocks of each GPU, now."""
        nvml = self._nvml
        return [
            _answers(nvml, {
                "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
                "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                "use_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
                "reasons": lambda: _reasons(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
            })
            for handle in self._handles
        ]  # fmt: skip

    def used_bytes(self) -> int | None:
        """Memory in use on all of these GPUs, by whatever process [byte]; ``None`` without a GPU or an answer."""
        try:
            found = [self._nvml.nvmlDeviceGetMemoryInfo(handle).used for handle in self._handles]
        except self._nvml.NVMLError:
            return None
        return sum(found) if found else None


def slowed(sample: Mapping[str, Any]) -> bool | None:
    """Whether a GPU's clocks are held back in ``sample``; ``None`` where its driver does not tell."""
    reasons = sample["reasons"]
    return any(reason in SLOWING for reason in reasons) if isinstance(reasons, list) else None


def _visible(nvml, handles: list, chosen: str | None) -> list:
    """Those that CUDA_VISIBLE_DEVICES, ``chosen``, leaves to this process, by index or by UUID."""
    if chosen is None:
        return handles
    found = []
    for name in filter(None, map(str.strip, chosen.split(","))):
        if name.isdigit():
            found += handles[int(name) : int(name) + 1]
        else:
            found += [handle for handle in handles if nvml.nvmlDeviceGetUUID(handle).startswith(name)]
    return found


def _reasons(nvml, bits: int) -> list[str]:
    names = [name for name in dir(nvml) if name.startswith(_REASON) and not name.endswith(("None", "All"))]
    return sorted({name.removeprefix(_REASON) for name in names if bits & getattr(nvml, name)})


def _answers(nvml, questions: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    found = {}
    for name, ask in questions.items():
        try:
            found[name] = ask()
        except nvml.NVMLError as error:  # virtual GPUs answer only some questions
            found[name] = f"unknown: {error}"
    return found
