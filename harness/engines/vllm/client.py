"""The other end of an engine's process: starts it, asks, waits no longer than allowed, and ends it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from harness.errors import UserError

_KEPT_LINES = 3


class EngineCrash(RuntimeError):
    """The engine's process died, or gave no answer in time and was ended."""


class EngineProcess:
    """One strategy's vLLM. It is started by the first question and started again by the next after a crash."""

    def __init__(
        self, strategy: Mapping[str, Any], arguments: Mapping[str, Any], variables: Mapping[str, str],
        start_timeout_s: float, timeout_s: float,
    ) -> None:  # fmt: skip
        self._strategy, self._arguments, self._variables = dict(strategy), dict(arguments), dict(variables)
        self._start_timeout_s, self._timeout_s = start_timeout_s, timeout_s
        self._process: subprocess.Popen | None = None
        self._read = b""
        self.settings: dict[str, Any] | None = None
        self.probe: list[dict[str, Any]] | None = None

    def start(self) -> None:
        """Load. Raises ``UserError`` for what vLLM or the strategy refuses, ``EngineCrash`` for anything else."""
        self._log = tempfile.TemporaryFile()
        self._read = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.engines.vllm.process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env={**os.environ, **self._variables},
        )  # fmt: skip
        self._send({"strategy": self._strategy, "arguments": self._arguments})
        answer = self._receive(self._start_timeout_s, "loading")
        if "refused" in answer:
            self.close()
            raise UserError(answer["refused"])
        self.settings, self.probe = answer["settings"], answer["probe"]

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. Raises ``EngineCrash``, and ``RuntimeError`` with what vLLM raised for this question."""
        if self._process is None:
            self.start()
        self._send(question)
        answer = self._receive(self._timeout_s, "answering")
        if "failed" in answer:
            kind, message = answer["failed"]
            raise RuntimeError(f"vLLM, {self._strategy['name']}: {kind}: {' '.join(message.split())}")
        return answer

    def close(self) -> None:
        """End the process: it leaves when its input ends, and is killed when it does not."""
        process, self._process = self._process, None
        if process is None:
            return
        process.stdin.close()
        try:
            process.wait(timeout=20)
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

    def _receive(self, timeout_s: float, doing: str) -> dict[str, Any]:
        stream, deadline = self._process.stdout.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
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
        raise EngineCrash(f"vLLM's process for {self._strategy['name']} {what} (status {status}): {words}")

    def _last_words(self) -> str:
        """The last lines of the log that tell of an error, else the last lines."""
        self._log.seek(0)
        lines = [" ".join(line.split()) for line in self._log.read().decode(errors="replace").splitlines()]
        lines = [line for line in lines if line]
        telling = [line for line in lines if "Error" in line or "error:" in line]
        return " | ".join((telling or lines)[-_KEPT_LINES:]) or "it printed nothing"
