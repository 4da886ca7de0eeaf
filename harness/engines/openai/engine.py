"""An engine that is somewhere else: every arm is a server with the OpenAI API, asked over HTTP with streaming."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.engines.base import room_behind
from harness.engines.openai.client import Client
from harness.engines.openai.prometheus import Counters
from harness.engines.openai.server import Server, normal
from harness.engines.openai.stream import ServerFailed
from harness.errors import UserError
from harness.metrics import output_tokens
from harness.models.vocabulary import load_vocabulary
from harness.models.weights import resolve
from harness.options import choose
from harness.records import Decoded, Drafting, Request, Sampling

API_KEY = "OPENAI_API_KEY"
_DTYPES = {"auto": "unknown", "fp32": "float32", "bf16": "bfloat16"}
_PROBE = [{"role": "user", "content": "Say hello."}]


class OpenAIEngine:
    """See ``harness.engines.base.Engine``. Prompts are rendered here, by the files of ``model``; its weights are not read.

    ``base_url`` is the address of the strategy of interest, or a mapping from arms to addresses.
    """

    concurrent = True

    def __init__(
        self,
        model: Mapping,
        strategies: Mapping[str, Mapping],
        base_url: Any = None,
        served_model: str | None = None,
        timeout_s: float = 600,
    ) -> None:
        if timeout_s <= 0:
            raise UserError(f"engine.timeout_s={timeout_s}: must be more than 0 seconds")
        self._vocabulary = load_vocabulary(resolve(model))
        self._dtype = _DTYPES.get(model["dtype"], model["dtype"])
        self.end_tokens = self._vocabulary.tokenizer.end_tokens
        addresses = base_url if isinstance(base_url, Mapping) else {name: base_url for name in strategies}
        addresses = {name: normal(addresses[name]) for name in strategies}
        self._client = Client(timeout_s, os.environ.get(API_KEY))
        probe = Request(tuple(self.render(_PROBE)), self.end_tokens, Sampling(), messages=tuple(_PROBE))
        servers = {name: Server.find(self._client, url, served_model, probe) for name, url in addresses.items()}
        if not all(server.dialect.ids for server in servers.values()):  # answers are compared, so all must be of one kind
            servers = {name: server.without_ids() for name, server in servers.items()}
        self._servers = servers
        known = [s.context_length for s in self._servers.values() if s.context_length] or [self._vocabulary.context_length]
        self.context_length = min(known, default=None) or sys.maxsize
        self._others: set[str] = set()

    @staticmethod
    def measurable(arms: Sequence[str], interest: str, base_url: Any = None, **options: Any) -> list[str]:
        """The arms that have a server. Raises ``UserError`` for a server whose arm there is not."""
        if not isinstance(base_url, Mapping):
            return [interest]
        for name in base_url:
            if name not in arms:
                raise UserError(f"engine.base_url={{{name}: ...}}: there is no such arm; {choose(str(name), arms)}")
        if interest not in base_url:
            raise UserError(f"engine.base_url: has no address for strategy={interest}; add it, or choose a strategy that has one")
        return [name for name in arms if name in base_url]

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        return self._vocabulary.tokenizer.render(messages)

    def text(self, tokens: list[int]) -> str:
        return self._vocabulary.tokenizer.decode(list(tokens))

    def decode(self, strategy: str, request: Request) -> Decoded:
        server, room = self._servers[strategy], room_behind(request, self.context_length)
        if request.sampling.top_k and not server.dialect.ids:
            raise UserError(f"sampling.top_k={request.sampling.top_k}: the API of {server.base_url} has none; give 0")
        wanted = request.sampling.max_new_tokens
        before = server.counters() if request.alone else None
        answer = server.ask(request, min(wanted, room))
        count = len(answer.tokens) if answer.has_ids else answer.counted
        decoded = Decoded(
            tokens=tuple(answer.tokens) if answer.has_ids else (),
            finish_reason=_reason(answer.finish_reason, count < wanted),
            ttft_s=answer.chunks[0].at_s,
            end_s=answer.chunks[-1].at_s,
            chunks=tuple(answer.chunks),
            output_tokens=None if answer.has_ids else count,
            text=None if answer.has_ids else answer.text,
        )
        return replace(decoded, drafting=self.drafting_since(strategy, before, [decoded]))

    def peaks(self) -> tuple[int, int]:
        """0: a server does not tell."""
        return 0, 0

    def counters(self, strategy: str) -> Counters | None:
        """What the arm's server has counted since its start; ``None`` where it does not count."""
        return self._servers[strategy].counters()

    def drafting_since(self, strategy: str, before: Counters | None, answers: Sequence[Decoded]) -> Drafting | None:
        """The rounds behind ``answers``, all that the server gave since ``before``; ``None`` if it gave others too."""
        counted = self._servers[strategy].counted_since(before, sum(map(output_tokens, answers)))
        if counted is None and before is not None:
            self._others.add(strategy)
        return counted and counted.drafting(len(answers))

    def settings(self) -> Mapping[str, Any]:
        servers = {name: dict(server.about) for name, server in self._servers.items()}
        caching = {about["prefix_caching"] for about in servers.values()}
        return {
            "dtype": self._dtype,
            "device": None,
            "context_length": self.context_length,
            "end_tokens": list(self.end_tokens),
            "model_sha256": self._vocabulary.checksum,
            "drafters": {name: None for name in servers},
            "prefix_caching": caching.pop() if len(caching) == 1 else None,
            "servers": servers,
        }

    def remarks(self) -> list[str]:
        """What a reader must know of these servers."""
        lines = ["what each server runs, and in which dtype, is as its operator says: a server does not tell"]
        for name, server in self._servers.items():
            about = server.about
            if about["prefix_caching"]:
                lines.append(f"{name}: prefix caching is on at {server.base_url}: a prompt that was asked before has a shorter TTFT")
            if not server.dialect.ids:
                lines.append(f"{name}: {server.base_url} sends no token ids: tokens are its usage's, answers are compared as text")
            if about["prompts"] != "token ids":
                lines.append(f"{name}: prompts are sent as {about['prompts']}")
            if not server.counts:
                lines.append(f"{name}: {server.base_url} counts no rounds, so there is no acceptance")
        others = sorted(self._others)
        return lines + [f"{name}: acceptance is missing where others used its server too" for name in others]


def _reason(given: str | None, short: bool) -> str:
    """The harness's word for why an answer ended; ``short``: it holds fewer tokens than were asked for."""
    if given not in ("stop", "length"):
        raise ServerFailed(f"the answer ended for the reason {given}, which is none of stop and length")
    return "context" if given == "length" and short else given
