"""A reader of what we print that has seen enough, such as head, ends the program and leaves no traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CLOSED = 141  # what a shell says of a program that SIGPIPE ended


@contextmanager
def ends_with_its_reader() -> Iterator[None]:
    """Raises ``SystemExit`` with status 141 when nobody reads stdout or stderr any more."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, and not where the interpreter ends and can only complain
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        raise SystemExit(CLOSED) from None
