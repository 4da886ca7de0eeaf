"""The other end of an engine's process: starts it, asks, waits no longer than allowed, and ends it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.cache_folder import cache_folder
from harness.errors import UserError

PROGRAM = (sys.executable, "-m", "harness.engines.vllm.process")
_KEPT_LINES = 3
_LEAVE_S = 20.0


class EngineCrash(RuntimeError):
    """The engine's process died, or gave no answer in time and was ended."""


class EngineProcess:
    """The vLLM of the arm ``name``. It is started by the first question and started again by the next after a crash."""

    def __init__(
        self, name: str, strategy: Mapping[str, Any], arguments: Mapping[str, Any], variables: Mapping[str, str],
        start_timeout_s: float, timeout_s: float,
    ) -> None:  # fmt: skip
        self._name, self._strategy, self._arguments, self._variables = name, dict(strategy), dict(arguments), dict(variables)
        self._start_timeout_s, self._timeout_s = start_timeout_s, timeout_s
        self._process: subprocess.Popen | None = None
        self._loaded = False
        self._read = b""
        self.settings: dict[str, Any] | None = None
        self.probe: list[dict[str, Any]] | None = None

    def start(self) -> None:
        """Load. Raises ``UserError`` for what vLLM or the strategy refuses, ``EngineCrash`` for anything else."""
        self.begin()
        self.await_loaded()

    def begin(self) -> None:
        """Let it load, and do not wait for it: ``await_loaded`` does, and ``fileno`` is readable once it answers or dies."""
        self._log = tempfile.TemporaryFile()
        self._read, self._loaded, self._begun = b"", False, time.monotonic()
        self._process = subprocess.Popen(
            PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env={**os.environ, **self._variables}
        )
        self._send({"strategy": self._strategy, "arguments": self._arguments})

    def fileno(self) -> int:
        return self._process.stdout.fileno()

    @property
    def start_left_s(self) -> float:
        """How long loading may still take."""
        return max(0.0, self._begun + self._start_timeout_s - time.monotonic())

    def await_loaded(self) -> None:
        """The second half of ``start``."""
        answer = self._receive(self._start_timeout_s, "loading", self._begun)
        if "refused" in answer:
            self.close()
            raise UserError(answer["refused"])
        self.settings, self.probe, self._loaded = answer["settings"], answer["probe"], True

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. Raises ``EngineCrash``, and ``RuntimeError`` with what vLLM raised for this question."""
        if self._process is None:
            self.start()
        self._send(question)
        answer = self._receive(self._timeout_s, "answering")
        if "failed" in answer:
            kind, message = answer["failed"]
            raise RuntimeError(f"vLLM, {self._name}: {kind}: {' '.join(message.split())}")
        return answer

    def let_go(self) -> None:
        """Its input ends, so that it leaves; one that is still loading, and would not look, is killed."""
        if self._process is None:
            return
        if not self._loaded:
            self._process.kill()
        with suppress(BrokenPipeError):  # it died with a question half told
            self._process.stdin.close()

    def close(self) -> None:
        """End the process, by force if it does not leave."""
        self.let_go()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(timeout=_LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._log.close()

    def _send(self, question: Mapping[str, Any]) -> None:
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died: _receive says so, with its last words

    def _receive(self, timeout_s: float, doing: str, begun: float | None = None) -> dict[str, Any]:
        stream, deadline = self.fileno(), (time.monotonic() if begun is None else begun) + timeout_s
        while b"\n" not in self._read:
            if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self._give_up(f"gave no answer within {timeout_s:g} s while {doing}", kill=True)
            block = os.read(stream, 1 << 16)
            if not block:
                self._give_up(f"died while {doing}", kill=False)
            self._read += block
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def _give_up(self, what: str, kill: bool) -> None:
        if kill:
            self._process.kill()
        status = self._process.wait()
        words = self._last_words()
        self.close()
        raise EngineCrash(f"vLLM's process for {self._name} {what} (status {status}): {words}")

    def _last_words(self) -> str:
        """The last lines of the log that tell of an error, else the last lines, and where the whole of it is kept."""
        self._log.seek(0)
        log = self._log.read()
        lines = [" ".join(line.split()) for line in log.decode(errors="replace").splitlines()]
        lines = [line for line in lines if line]
        telling = [line for line in lines if "Error" in line or "error:" in line]
        if not lines:
            return "it printed nothing"
        return f"{' | '.join((telling or lines)[-_KEPT_LINES:])}{self._keep(log)}"

    def _keep(self, log: bytes) -> str:
        kept = Path(cache_folder()) / "vllm" / f"{self._name}.log"
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(log)
        except OSError:
            return ""
        return f" (its whole log is {kept})"


def start_together(processes: Collection[EngineProcess]) -> None:
    """Let all load at once and wait for all. The first that fails, or Ctrl-C, ends all of them and is raised."""
    try:
        for process in processes:
            process.begin()
        waiting = list(processes)
        while waiting:
            # With none in time the one that began first is asked, and gives up.
            ready = select.select(waiting, [], [], min(process.start_left_s for process in waiting))[0] or waiting[:1]
            for process in ready:
                process.await_loaded()
            waiting = [process for process in waiting if process not in ready]
    except BaseException:
        close_together(processes)
        raise


def close_together(processes: Collection[EngineProcess]) -> None:
    """End all, waiting for none before every one knows."""
    for process in processes:
        process.let_go()
    for process in processes:
        process.close()
