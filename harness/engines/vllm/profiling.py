"""An engine's rounds under torch's profiler: a trace that says when the host did what, and what the device did meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from harness.errors import UserError
from harness.records import Request

ROUND = "round"  # what a step of the engine is called in the trace


def profiled(driver, request: Request, skip: int, rounds: int, spans: Sequence[str], trace: str) -> dict[str, Any]:
    """Seconds of ``rounds`` steps without and with the profiler, the first ``skip`` steps left out; the trace goes to ``trace``.

    ``spans``: functions to name in the trace, as ``module:name`` or ``module:Class.name``; those that this version lacks come
    back as ``missing``. Steps behind the answer's end are not taken, so there can be fewer.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if driver.device.type == "cuda" else [])]
    with _answering(driver, request, skip):
        plain = list(_steps(driver, rounds))
    if len(plain) < 3:
        raise UserError(f"the answer has {len(plain)} rounds behind the first {skip}; ask for a longer one")
    with named(spans) as missing, _answering(driver, request, skip - 1):
        with profile(activities=activities):  # what the profiler itself loads at first is in no figure
            list(_steps(driver, 1))
        with profile(activities=activities) as profiler:
            seconds = list(_steps(driver, rounds))
            if driver.device.type == "cuda":
                torch.cuda.synchronize(driver.device)
    profiler.export_chrome_trace(trace)
    return {"plain_s": plain, "profiled_s": seconds, "missing": missing, "device": device_name(driver.device)}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextmanager
def _answering(driver, request: Request, skip: int) -> Iterator[None]:
    driver.add("profiled", request)
    try:
        for _ in range(skip):
            driver.step()
        yield
    finally:
        if "profiled" in driver.running:
            driver.abort("profiled")


def _steps(driver, rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        if not driver.running:
            return
        begun = time.perf_counter()
        with record_function(ROUND):
            driver.step()
        yield time.perf_counter() - begun


@contextmanager
def named(paths: Sequence[str]) -> Iterator[list[str]]:
    """Calls of the functions at ``paths`` carry their names in a trace; gives the paths that lead nowhere."""
    missing = []
    with ExitStack() as stack:
        for path in paths:
            module, _, name = path.partition(":")
            *owners, attribute = name.split(".")
            try:
                owner = import_module(module)
                for part in owners:
                    owner = getattr(owner, part)
                usual = getattr(owner, attribute)
            except (ImportError, AttributeError):
                missing.append(path)
                continue
            stack.callback(setattr, owner, attribute, usual)
            setattr(owner, attribute, _spanned(name, usual))
        yield missing


def _spanned(name: str, usual):
    def spanned(*args, **kwargs):
        with record_function(name):
            return usual(*args, **kwargs)

    return spanned
