"""How far a download is, on stderr: a bar in a terminal, one line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

Advance = Callable[[int], None]


@contextmanager
def download_progress(name: str, length: str | None) -> Iterator[Advance]:
    """Gives a function to call with the number of bytes of each piece that came. ``length`` is what was announced."""
    console = Console(stderr=True)
    total = int(length) if length and length.isdecimal() else None
    if not console.is_terminal:
        size = "of unknown size" if total is None else f"{total:,} bytes"
        print(f"fetching {name}, {size}", file=sys.stderr, flush=True)
        yield lambda count: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda count: bar.update(task, advance=count)
