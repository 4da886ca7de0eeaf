"""Memory in pages of 2 MiB instead of 4 KiB: with fewer pages to look up, a CPU reads weights about a quarter faster."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable

_HUGE = 1 << 21
_GAP = 1 << 16  # allocators leave less between one block and the next
_MADV_COLLAPSE = 25  # Linux 6.1


def collapse(places: Iterable[tuple[int, int]]) -> None:
    """Ask the kernel to put these ``(address, bytes)`` into huge pages now, as far as they cover whole ones.

    Contents stay. Where the kernel knows no such request or has no such pages, nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for begin, end in _joined(places):
        begin, end = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if begin < end:
            madvise(begin, end - begin, _MADV_COLLAPSE)


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """``(begin, end)`` of blocks that lie one behind the other."""
    joined: list[tuple[int, int]] = []
    for begin, size in sorted(places):
        if joined and begin - joined[-1][1] <= _GAP:
            joined[-1] = joined[-1][0], begin + size
        else:
            joined.append((begin, begin + size))
    return joined
