"""A small real HTTP server with the OpenAI API, for tests: streams what a function decodes, and can be made to fail.

It is not vLLM. What it sends follows what vLLM sends: one event a round, token ids when they are asked for, usage at the
end, counters under /metrics.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from harness.records import Decoded, Request, Sampling

Decode = Callable[[Request], Decoded]


@dataclass
class Behaviour:
    """``ids``: token ids are taken and sent; ``completions``: there is that API at all. ``gap_s`` lies between two events.

    From request number ``bad_from`` on, counted from 0: ``status`` is answered, or the stream is cut after ``cut_after``
    events, or ``error_after`` events are followed by an error, or ``silent`` leaves the client waiting. ``leaks``: what a
    client that went away had is not given back.
    """

    ids: bool = True
    completions: bool = True
    metrics: bool = True
    gap_s: float = 0.0
    first_s: float = 0.0
    key: str | None = None
    models: tuple[str, ...] = ("tiny",)
    max_model_len: int | None = None
    prefix_caching: bool = False
    count_others: int = 0
    finish: str | None = None
    usage_off_by: int = 0
    bad_from: int | None = None
    status: int | None = None
    cut_after: int | None = None
    error_after: int | None = None
    silent: bool = False
    leaks: bool = False


@dataclass
class Seen:
    """What the server was asked, and how many requests were under way at once."""

    bodies: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    now: int = 0
    most: int = 0
    gone: int = 0


class OpenAIServer:
    """Use as ``with OpenAIServer(decode, text) as server: server.url``."""

    def __init__(self, decode: Decode, text: Callable[[Sequence[int]], str], render=None, **behaviour) -> None:
        self.decode, self.text, self.render = decode, text, render
        self.behaviour, self.seen = Behaviour(**behaviour), Seen()
        self.counters = {"generated": 0, "drafts": 0, "proposed": 0, "accepted": 0}
        self.depths: list[int] = []
        self._lock = threading.Lock()

    def __enter__(self) -> OpenAIServer:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._call(self._start())
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def stop(self) -> None:
        if self._runner is not None:
            self._call(self._runner.cleanup())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._runner = None

    def _call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    async def _models(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        entries = [{"id": name, "max_model_len": self.behaviour.max_model_len} for name in self.behaviour.models]
        return web.json_response({"data": entries})

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self.behaviour.metrics:
            return web.Response(status=404)
        lines = [f'vllm:generation_tokens_total{{engine="0"}} {float(self.counters["generated"])}']
        lines.append(f'vllm:cache_config_info{{enable_prefix_caching="{self.behaviour.prefix_caching}",block_size="16"}} 1.0')
        lines += [f"vllm:num_requests_running {self.seen.now}.0", "vllm:num_requests_waiting 0.0"]
        lines.append(f"vllm:kv_cache_usage_perc {(self.seen.now + self.behaviour.leaks * self.seen.gone) / 100}")
        if self.counters["drafts"]:
            names = {"drafts": "num_drafts", "proposed": "num_draft_tokens", "accepted": "num_accepted_tokens"}
            lines += [f'vllm:spec_decode_{names[n]}_total{{engine="0"}} {float(self.counters[n])}' for n in names]
            position = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{}"}} {}'
            lines += [position.format(i, float(n)) for i, n in enumerate(self.depths)]
        return web.Response(text="# HELP something\n" + "\n".join(lines) + "\n")

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        if not self.behaviour.completions:
            return web.Response(status=404, text="no such API")
        body = await request.json()
        if not self.behaviour.ids and ("return_token_ids" in body or "top_k" in body):
            return web.json_response({"error": {"message": "unknown field"}}, status=400)
        return await self._answer(request, body, body["prompt"], body.get("stop_token_ids"), chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._answer(request, body, self.render(body["messages"]), None, chat=True)

    def _refused(self, request: web.Request) -> web.Response | None:
        key = self.behaviour.key
        if key and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": {"message": "no key"}}, status=401)
        return None

    async def _answer(self, request, body, prompt, ends, chat: bool) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        how, number = self.behaviour, len(self.seen.bodies)
        self.seen.bodies.append(body)
        self.seen.headers.append(dict(request.headers))
        bad = how.bad_from is not None and number >= how.bad_from
        if bad and how.status:
            return web.json_response({"error": {"message": "a fault\nover two lines"}}, status=how.status)
        self.seen.now += 1
        self.seen.most = max(self.seen.most, self.seen.now)
        try:
            return await self._stream(request, body, prompt, ends, chat, bad)
        except (ConnectionError, asyncio.CancelledError):
            self.seen.gone += 1
            raise
        finally:
            self.seen.now -= 1

    async def _stream(self, request, body, prompt, ends, chat: bool, bad: bool) -> web.StreamResponse:
        how = self.behaviour
        sampling = Sampling(temperature=body["temperature"], top_p=body["top_p"], max_new_tokens=body["max_tokens"],
                            seed=body.get("seed", 0), top_k=body.get("top_k", 0))  # fmt: skip
        asked = Request(tuple(prompt), tuple(ends or ()), sampling)
        decoded = await self._loop.run_in_executor(None, self._decode, asked)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sizes, done = [1, *(r.emitted for r in decoded.rounds)], 0
        await asyncio.sleep(how.first_s)
        for number, size in enumerate(sizes):
            if number:
                await asyncio.sleep(how.gap_s)
            if bad and how.silent:
                await asyncio.sleep(30)
            if bad and how.cut_after == number:
                request.transport.close()
                return response
            if bad and how.error_after == number:
                await self._send(response, {"error": {"message": "the engine died", "code": 500}})
                return response
            ids = list(decoded.tokens[done : done + size])
            text = self.text(decoded.tokens[: done + size])[len(self.text(decoded.tokens[:done])) :]
            done += size
            choice = {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}
            if body.get("return_token_ids"):
                choice["token_ids"] = ids
            if number == len(sizes) - 1:
                choice["finish_reason"] = how.finish or decoded.finish_reason
            await self._send(response, {"choices": [choice]})
        counted = len(decoded.tokens) + how.usage_off_by
        if body["stream_options"]["include_usage"]:
            await self._send(response, {"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": counted}})
        await response.write(b"data: [DONE]\n\n")
        self._count(decoded)
        return response

    def _decode(self, asked: Request) -> Decoded:
        with self._lock:
            return self.decode(asked)

    async def _send(self, response: web.StreamResponse, event: dict) -> None:
        await response.write(f"data: {json.dumps(event)}\n\n".encode())

    def _count(self, decoded: Decoded) -> None:
        """A moment after the last event, as a server may."""
        self.counters["generated"] += len(decoded.tokens) + self.behaviour.count_others
        for r in decoded.rounds:
            self.counters["drafts"] += r.proposed > 0
            self.counters["proposed"] += r.proposed
            self.counters["accepted"] += r.accepted
            self.depths += [0] * (r.depth - len(self.depths))
            for depth in range(r.accepted):
                self.depths[depth] += 1
