"""How far a run is, on stderr: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINES, PATIENCE_S = 10, 30


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Gives a function to call with a few words as each of ``total`` cells is finished."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(total)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda words: bar.update(task, advance=1, description=words)


def _lines(total: int) -> Callable[[str], None]:
    start, finished, step, said = time.perf_counter(), 0, max(total // LINES, 1), 0.0

    def advance(words: str) -> None:
        nonlocal finished, said
        finished += 1
        seconds = time.perf_counter() - start
        if finished % step == 0 or finished in (1, total) or seconds - said > PATIENCE_S:
            said, left = seconds, seconds / finished * (total - finished)
            print(f"{finished}/{total} cells, {seconds:.0f} s, {left:.0f} s left, {words}", file=sys.stderr, flush=True)

    return advance
