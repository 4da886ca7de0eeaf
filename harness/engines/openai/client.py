"""HTTP for an engine that is asked from several threads: one event loop in a thread of its own takes every time."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from harness.engines.openai.stream import Answer, Events
from harness.errors import UserError, one_line

Result = TypeVar("Result")
PATIENCE_S = 30  # for what a server answers at once: its models, its metrics


class NoConnection(Exception):
    """Nothing answers at the address, or the connection broke."""


class NoAnswerInTime(Exception):
    """The answer did not end within ``engine.timeout_s``."""


class HttpStatus(Exception):
    """The server refused a request. ``status`` is HTTP's."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {' '.join(body.split())[:200] or 'no reason given'}")
        self.status = status


class Client:
    """``api_key`` goes into every request's header and nowhere else. ``timeout_s`` bounds a whole answer [s]."""

    def __init__(self, timeout_s: float, api_key: str | None = None) -> None:
        try:
            import aiohttp
        except ImportError:
            raise UserError("engine=openai needs the package aiohttp; install it with pip install 'draft-harness[openai]'") from None
        self._aiohttp, self._timeout_s = aiohttp, timeout_s
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="openai-client").start()
        self._session = self._wait(self._open())
        atexit.register(self.close)

    def close(self) -> None:
        """Drop every connection, which tells a server to stop what it still generates."""
        if not self._session.closed:
            self._wait(self._session.close())
            self._loop.call_soon_threadsafe(self._loop.stop)

    def get(self, url: str) -> str:
        """The body of what lies at ``url``. Raises ``HttpStatus`` and ``NoConnection``."""
        return self._wait(self._get(url))

    def stream(self, url: str, body: Mapping[str, Any]) -> Answer:
        """The answer to ``body``, whole. Times count from just before the request is sent.

        Raises ``HttpStatus``, ``NoConnection``, ``NoAnswerInTime``, ``StreamCut`` and ``ServerFailed``.
        """
        return self._wait(self._stream(url, body))

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C above all: the server must not go on for nobody
            future.cancel()
            raise

    async def _open(self):
        # As many connections as there are requests under way. Each is kept for the next one, but not until the server drops
        # it: many do after five seconds.
        connector = self._aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
        return self._aiohttp.ClientSession(
            connector=connector, headers=self._headers, timeout=self._aiohttp.ClientTimeout(total=None)
        )

    async def _get(self, url: str) -> str:
        try:
            async with asyncio.timeout(PATIENCE_S), self._session.get(url) as response:
                body = await response.text()
                if response.status != 200:
                    raise HttpStatus(response.status, body)
                return body
        except TimeoutError:
            raise NoConnection(f"no answer within {PATIENCE_S} s") from None
        except (self._aiohttp.ClientError, OSError) as error:
            raise NoConnection(one_line(error)) from error

    async def _stream(self, url: str, body: Mapping[str, Any]) -> Answer:
        answer, events, began = Answer(), Events(), False
        handed_over = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s), self._session.post(url, json=body) as response:
                if response.status != 200:
                    raise HttpStatus(response.status, await response.text())
                began = True
                async for received in response.content.iter_any():
                    at_s = time.perf_counter() - handed_over
                    for data in events.feed(received):
                        answer.take(data, at_s)
        except TimeoutError:
            raise NoAnswerInTime(f"no whole answer within {self._timeout_s:g} s; {len(answer.chunks)} chunks had come") from None
        except (self._aiohttp.ClientError, OSError) as error:
            if not began:
                raise NoConnection(one_line(error)) from error
        answer.check()  # a connection that broke inside the stream is found here, with what had come
        return answer
