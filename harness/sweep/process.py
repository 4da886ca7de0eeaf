"""One job in a process of its own, and nothing of it left when it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

# Where compilers keep on disk what they made: an empty folder for each job, so that none starts from another's.
COMPILE_CACHES = ("CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT")
PATIENCE_S = 5

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Outcome:
    """``status`` is the process's exit status, negative for a signal; ``last`` the last line that it wrote to stderr."""

    status: int
    seconds: float
    last: str
    interrupted: bool


def run(arguments: Sequence[str], folder: Path, lock: int | None, say: Callable[[str], None]) -> Outcome:
    """``python -m harness`` with ``arguments``; stdout goes to ``output.txt`` in ``folder``, stderr to ``log.txt`` and ``say``.

    The first Ctrl-C is handed on, and the job stores what it has; a second one kills it. The process inherits ``lock``,
    so that one which outlives a killed sweep keeps others from it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    begun, interrupted = time.perf_counter(), False
    with TemporaryDirectory(prefix="draft-harness-", ignore_cleanup_errors=True) as caches, open(folder / "output.txt", "a") as output:
        environment = {**os.environ, **{name: os.path.join(caches, name.lower()) for name in COMPILE_CACHES}}
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", *arguments], env=environment, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
            process_group=0, pass_fds=() if lock is None else (lock,),
        )  # fmt: skip
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # in a shell's background; then the job ignores it too
        gentle = signal.SIGTERM if ignored else signal.SIGINT
        try:
            log = _Log(process.stderr, folder / "log.txt", say)
            while process.returncode is None:
                try:
                    process.wait()
                except KeyboardInterrupt:
                    process.send_signal(signal.SIGKILL if interrupted else gentle)
                    interrupted = True
        finally:
            _end_group(process.pid)
        log.join(PATIENCE_S)
    return Outcome(process.returncode, time.perf_counter() - begun, log.last, interrupted)


def _end_group(leader: int) -> None:
    """An engine's workers that outlived their parent: they may hold the device's memory."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _plain(line: str) -> str:
    """Without a terminal's colours and what else cannot be printed."""
    return " ".join("".join(c if c.isprintable() else " " for c in _COLOUR.sub("", line)).split())


class _Log(threading.Thread):
    """Reads a stream to its end, so that its writer never waits."""

    def __init__(self, stream: TextIO, path: Path, say: Callable[[str], None]) -> None:
        super().__init__(name="job's stderr", daemon=True)
        self._stream, self._path, self._say, self.last = stream, path, say, ""
        self.start()

    def run(self) -> None:
        with open(self._path, "a") as file:
            for line in self._stream:
                self.last = _plain(line) or self.last
                try:
                    file.write(line)
                    file.flush()
                    self._say(line.rstrip())
                except OSError:  # the disk is full, or nobody reads our own stderr any more
                    pass
