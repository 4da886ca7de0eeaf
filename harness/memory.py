"""Peak memory around a cell: the process's resident memory, and the device's when CUDA is in use.

Linux keeps a process's peak resident size and lets it be reset, so that each cell has a peak of its own. Where it
cannot be reset the figure is the peak since the process started, which can only grow from cell to cell.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def reset_peaks() -> None:
    """Start new peaks: the next ``host_peak_bytes`` and ``device_peak_bytes`` count from here."""
    try:
        _RESET.write_text("5")  # 5 resets the peak resident size and nothing else, proc(5)
    except OSError:
        pass
    if cuda := _cuda():
        cuda.reset_peak_memory_stats()


def host_peak_bytes() -> int:
    """Peak resident memory of this process [byte]."""
    try:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def device_peak_bytes() -> int:
    """Peak memory that PyTorch's allocator gave out on the current CUDA device [byte]; 0 without one."""
    cuda = _cuda()
    return cuda.max_memory_allocated() if cuda else 0


def _cuda():
    """``torch.cuda`` if an engine has brought it up in this process; the harness itself imports no torch."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized() else None
