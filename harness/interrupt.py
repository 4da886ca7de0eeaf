"""Ctrl-C before a run has anything to keep: the process says so and ends, wherever it is.

As an exception it gets lost there: an extension module that is being loaded turns it into an ImportError of its own.
"""

from __future__ import annotations

import os
import signal

STATUS = 130


def leave_at_once(said: str) -> None:
    """From now on Ctrl-C prints ``said`` and ends the process. A signal that is ignored or handled otherwise stays so."""

    def leave(*_) -> None:
        os.write(2, f"{said}\n".encode())
        os._exit(STATUS)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def as_exception() -> None:
    """From now on Ctrl-C is a ``KeyboardInterrupt`` again, unless it is ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore() -> None:
    """From now on Ctrl-C does nothing: the work is done, and Python is shutting down."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
