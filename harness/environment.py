"""The machine, the software and the seeds behind a run, written down before anything is measured."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from harness import nvidia

# Variables that change what a run does or how fast it is.
_TELLING = (
    "CUDA", "GOMP", "HARNESS", "HF_", "KMP", "LD_PRELOAD", "MALLOC", "MKL", "NCCL", "NVIDIA", "OMP", "OPENBLAS",
    "PYTHON", "PYTORCH", "SGLANG", "TOKENIZERS", "TORCH", "TRITON", "VLLM",
)  # fmt: skip
_SECRET = re.compile(r"TOKEN(?!IZERS)|KEY|SECRET|PASS|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(\w+://)[^/\s@]+@")


def describe(engine: Mapping[str, Any], suite: Mapping[str, Any], seeds: Mapping[str, int]) -> dict[str, Any]:
    """Everything about this run that its configuration does not say. ``engine`` holds the engine's live settings."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "harness", *sys.argv[1:]]),
        "git": git_state(Path(__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus(),
        "torch": torch_build(),
        "packages": packages(),
        "engine": dict(engine),
        "suite": dict(suite),
        "seeds": dict(seeds),
        "variables": telling_variables(os.environ),
    }


def telling_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to a run, without those named like a secret and without users in addresses."""
    return {
        name: _USER_IN_URL.sub(r"\1***@", value)
        for name, value in sorted(variables.items())
        if name.startswith(_TELLING) and not _SECRET.search(name)
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the harness's own code and whether its tree differs from it; ``None`` outside a repository."""
    commit = _output("git", "-C", str(folder), "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_output("git", "-C", str(folder), "status", "--porcelain"))}


def cpu() -> dict[str, Any]:
    """Model, cores that this process may use, who sets their clock, and the load of the machine at the start."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count()
    return {
        "model": model,
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": usable,
        "governor": _governor(),
        "max_mhz": _max_mhz(),
        "load_average": list(os.getloadavg()),
    }


def _governor() -> str | None:
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:  # a virtual machine's clock is its host's affair
        return None


def _max_mhz() -> float | None:
    frequency = psutil.cpu_freq()
    return frequency.max or None if frequency else None


def gpus() -> list[dict[str, Any]]:
    """Every NVIDIA GPU that this process may use: name, driver, limits, clocks, power; empty without a driver."""
    with nvidia.driver() as found:
        return found.describe()


def torch_build() -> dict[str, Any] | None:
    """The PyTorch that an engine brought into this process; the harness itself imports none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return {"version": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads()}


def packages() -> dict[str, str]:
    """Every installed distribution and its version."""
    found = {dist.metadata["Name"]: dist.version for dist in metadata.distributions()}
    return dict(sorted((name, version) for name, version in found.items() if name))


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
