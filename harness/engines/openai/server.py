"""One server, looked at before anything is measured: what it serves, what it takes, what it counts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from harness.engines.openai import dialect as dialects
from harness.engines.openai.client import Client, HttpStatus, NoConnection
from harness.engines.openai.dialect import Dialect
from harness.engines.openai.prometheus import Counters, prefix_caching
from harness.engines.openai.stream import Answer
from harness.errors import UserError
from harness.options import said
from harness.records import Request

# How long a server may take to count what it has already sent, and how often it is asked.
COUNTING_S, ASKED_EVERY_S = 2.0, 0.02


@dataclass(frozen=True)
class Server:
    """``context_length`` ``None``: it does not say. ``about`` is for the record."""

    client: Client
    base_url: str
    model: str
    dialect: Dialect
    context_length: int | None
    counts: bool
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, client: Client, base_url: str, served_model: str | None, probe: Request) -> Server:
        """Ask ``base_url`` what it is. Raises ``UserError`` with the address and the way out."""
        entry = _model(client, base_url, served_model)
        dialect, answer = dialects.find(client, base_url, entry["id"], probe)
        metrics, version = _text(client, f"{base_url}/metrics"), _json(client, f"{base_url}/version").get("version")
        context_length = entry.get("max_model_len")
        about = {
            "base_url": base_url,
            "model": entry["id"],
            "version": version,
            "context_length": context_length,
            "prefix_caching": prefix_caching(metrics),
            "counts_rounds": Counters.of(metrics) is not None,
            **dialects.describe(dialect, answer, probe),
        }
        whole = context_length if isinstance(context_length, int) else None
        return cls(client, base_url, entry["id"], dialect, whole, about["counts_rounds"], about)

    def without_ids(self) -> Server:
        """The same server, its answers taken as text."""
        if not self.dialect.ids:
            return self
        plain = dialects.COMPLETIONS
        return replace(self, dialect=plain, about={**self.about, "counts": plain.counts})

    def ask(self, request: Request, limit: int) -> Answer:
        """See ``Client.stream``."""
        return self.client.stream(self.base_url + self.dialect.path, self.dialect.body(self.model, request, limit))

    def counters(self) -> Counters | None:
        """Its counters now, once they stand still; ``None`` where it has none, or does not answer."""
        deadline, found = time.monotonic() + COUNTING_S, self._counters()
        while found is not None and time.monotonic() < deadline:
            time.sleep(ASKED_EVERY_S)
            before, found = found, self._counters()
            if found == before:
                break
        return found

    def _counters(self) -> Counters | None:
        return Counters.of(_text(self.client, f"{self.base_url}/metrics")) if self.counts else None

    def counted_since(self, before: Counters | None, generated: int) -> Counters | None:
        """What it counted since ``before``, once these are exactly ``generated`` tokens.

        A server counts a moment after it has sent. ``None`` when the tokens never agree: then others use it too.
        """
        deadline = time.monotonic() + COUNTING_S
        while before is not None and (now := self._counters()) is not None:
            counted = now.since(before)
            if counted.generated == generated:
                return counted
            if counted.generated > generated or time.monotonic() > deadline:
                return None
            time.sleep(ASKED_EVERY_S)
        return None


def normal(base_url: Any) -> str:
    """An address without a trailing ``/`` or ``/v1``. Raises ``UserError`` for what is none, and for one with a password."""
    key = f"engine.base_url={said(base_url)}"
    if not isinstance(base_url, str):
        raise UserError(f"{key}: is no address; give http://HOST:PORT, or one for each arm: {{baseline: http://..., ddtree: http://...}}")
    try:
        parts = urlsplit(base_url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole or parts.query or parts.fragment:
        raise UserError(f"{key}: is no address; give http://HOST:PORT or https://HOST, with a path before /v1 if there is one")
    if "@" in parts.netloc:
        raise UserError(f"engine.base_url=...@{parts.hostname}: addresses are stored, so they hold no password; set OPENAI_API_KEY instead")
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def _model(client: Client, base_url: str, wanted: str | None) -> dict[str, Any]:
    """The server's entry of the model ``wanted``, or of the only one that it serves."""
    try:
        body = client.get(f"{base_url}/v1/models")
    except NoConnection as error:
        raise UserError(f"engine.base_url={base_url}: nothing answers there ({error}); start the server or mend the address") from None
    except HttpStatus as error:
        way = "set OPENAI_API_KEY in the environment" if error.status in (401, 403) else "is it the address of an OpenAI API?"
        raise UserError(f"engine.base_url={base_url}: /v1/models answers {error}; {way}") from None
    try:
        entries = {str(entry["id"]): entry for entry in json.loads(body)["data"]}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"engine.base_url={base_url}: /v1/models is no list of models; is it the address of an OpenAI API?") from None
    if wanted is None and len(entries) == 1:
        return next(iter(entries.values()))
    if wanted not in entries:
        raise UserError(f"engine.served_model={wanted}: {base_url} serves {', '.join(entries) or 'none'}; name one of them")
    return entries[wanted]


def _text(client: Client, url: str) -> str:
    """What lies at ``url``, empty where there is nothing."""
    try:
        return client.get(url)
    except (HttpStatus, NoConnection):
        return ""


def _json(client: Client, url: str) -> dict[str, Any]:
    try:
        found = json.loads(_text(client, url) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
