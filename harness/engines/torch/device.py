"""Where to run, and in which precision."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from harness.cache_folder import cache_folder
from harness.errors import UserError
from kernels.native import layers as native

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp32": torch.float32, "bf16": torch.bfloat16}


def pick_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one. Raises ``UserError`` for a device that torch cannot use."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"engine.device={name} cannot be used ({reason}); give auto, cpu or cuda") from None
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto`` is bf16 where the hardware multiplies it, else fp32."""
    if name == "auto":
        return torch.bfloat16 if bf16_in_hardware(device) else torch.float32
    if name not in DTYPES:
        raise UserError(f"model.dtype={name} is unknown; give auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def bf16_in_hardware(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def seconds_of(work: Callable[[], None], device: torch.device) -> float:
    """How long ``work`` takes on ``device`` [s], by a GPU's own clock once it has nothing else to do."""
    if device.type != "cuda":
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def use_cpu_kernels(wanted: bool | None, device: torch.device, dtype: torch.dtype) -> None:
    """Whether layers that are packed from now on are the C kernels'. Raises ``UserError`` where they are wanted and cannot be had."""
    reason = None
    if device.type != "cpu":
        reason = f"engine.device={device} has kernels of its own"
    elif dtype is not torch.bfloat16:
        reason = f"they take bfloat16, not {str(dtype).removeprefix('torch.')}"
    unused = native.use(None if reason or wanted is False else cache_folder() / "kernels")
    if wanted and (reason or unused):
        raise UserError(f"engine.cpu_kernels=true: {reason or unused}; take null or false")
