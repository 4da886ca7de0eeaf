"""An answer as it comes in: server-sent events in, tokens and the times of their arrival out. No network, no clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.records import Chunk

DONE = "[DONE]"


class ServerFailed(Exception):
    """The server said so, or sent what is no answer."""


class StreamCut(Exception):
    """The stream ended before the answer did."""


class Events:
    """Splits bytes, however they were cut on their way, into the data of server-sent events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, received: bytes) -> Iterator[str]:
        """The data of every event that ``received`` completes."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            text = line.rstrip(b"\r").decode("utf-8", "replace")
            if not text and self._data:
                yield "\n".join(self._data)
                self._data = []
            elif text.startswith("data:"):
                self._data.append(text[5:].removeprefix(" "))


@dataclass
class Answer:
    """What has arrived of one answer. ``has_ids`` says whether every chunk came with its token ids."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    chunks: list[Chunk] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    counted: int | None = None
    has_ids: bool = True
    ended: bool = False

    def take(self, data: str, at_s: float) -> None:
        """One event that arrived ``at_s`` seconds after the request. Raises ``ServerFailed`` for one that is no answer's."""
        if data == DONE:
            self.ended = True
            return
        try:
            event = json.loads(data)
            choices = event.get("choices") or []
        except (ValueError, AttributeError):
            raise ServerFailed(f"sent an event that is no answer: {data[:80]!r}") from None
        if "error" in event:
            raise ServerFailed(f"sent an error: {_message(event['error'])}")
        if usage := event.get("usage"):
            self.prompt_tokens, self.counted = usage.get("prompt_tokens"), usage.get("completion_tokens")
        for choice in choices:
            self._take(choice, at_s)

    def _take(self, choice: dict[str, Any], at_s: float) -> None:
        ids, delta = choice.get("token_ids"), choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.text += text
        if not (text or thought) if ids is None else not ids:
            return  # the role, the reason of the end, or a token whose text is not whole yet
        self.tokens += ids or []
        self.has_ids = self.has_ids and ids is not None
        self.chunks.append(Chunk(None if ids is None else len(ids), at_s))

    def check(self) -> None:
        """Raise ``StreamCut`` or ``ServerFailed`` unless this is a whole answer whose count is known."""
        arrived = f"{len(self.tokens)} tokens" if self.has_ids else f"{len(self.chunks)} chunks"
        if not self.ended or not self.finish_reason:
            raise StreamCut(f"the stream ended after {arrived}, before the answer did")
        if not self.chunks:
            raise ServerFailed("the answer is empty: no token came")
        if not self.has_ids and self.counted is None:
            raise ServerFailed("sent neither token ids nor usage, so that nobody counted its tokens")
        if self.has_ids and self.counted not in (None, len(self.tokens)):
            raise ServerFailed(f"counted {self.counted} tokens and sent {len(self.tokens)} token ids")


def _message(error: Any) -> str:
    found = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(found).split())[:200]
