"""What the embedded engine needs."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from harness.probe.rows import Row, look


def rows(strategy: Mapping[str, Any]) -> list[Row]:
    return [
        look("PyTorch", _torch, "without it nothing decodes", needed=True),
        look("CUDA", _cuda, "without it decoding runs on the CPU"),
        look("Triton", _triton, "without it kernels run as plain PyTorch"),
        look("Python", platform.python_version, "3.11 or newer is supported"),
    ]


def _torch() -> str:
    import torch

    return torch.__version__


def _cuda() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return None
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def _triton() -> str:
    import triton

    return triton.__version__
