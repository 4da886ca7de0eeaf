"""A stand-in for an engine, for tests of the harness around it: made-up tokens and made-up times, no model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from harness import measuring
from harness.errors import UserError
from harness.records import Decoded, Request, Round

END = 0


class FakeEngine:
    """Its tokens are a function of the prompt alone; ``ddtree`` is twice as fast as anything else, two tokens a round.

    ``differs`` names a strategy that gets its last token wrong, ``interrupt_at`` the decode call that ends in Ctrl-C,
    ``broken`` a strategy whose every call raises, ``fault`` what it fails with while it is built. A call takes ``seconds``. With
    every further request in a batch a round of ``ddtree`` takes ``crowding`` of a round longer, and the first tokens of all come later.
    """

    end_tokens = (END,)
    interrupted_call: int | None = None

    def __init__(
        self,
        model,
        strategies,
        device: str = "auto",
        threads: int | None = None,
        captured_graphs: bool | None = None,
        cpu_kernels: bool | None = None,
        context_length: int = 100_000,
        differs: str | None = None,
        broken: str | None = None,
        fault: str | None = None,
        interrupt_at: int | None = None,
        seconds: float = 0.0,
        crowding: float = 0.0,
    ) -> None:
        self.context_length, self.differs, self.broken = context_length, differs, broken
        self.seconds, self.crowding = seconds, crowding
        self.interrupt_at, self.calls, self.seen, self.batches = interrupt_at, 0, [], []
        if fault:
            raise MemoryError(fault)
        for name, config in strategies.items():
            if config.get("budget", 1) != "auto" and config.get("budget", 1) < 1:
                raise UserError(f"strategy.budget={config['budget']}: must be 1 or more")

    def render(self, messages):
        return [1 + byte for message in messages for byte in message["content"].encode()]

    def text(self, tokens):
        return " ".join(map(str, tokens))

    def settings(self):
        return {"fake": True}

    def decode(self, strategy: str, request: Request) -> Decoded:
        self.seen.append((strategy, request))
        self._call(strategy)
        return self._answer(strategy, request)

    def decode_batch(self, strategy: str, requests: Sequence[Request]) -> list[Decoded]:
        self.batches.append((strategy, list(requests)))
        self._call(strategy)
        return [self._answer(strategy, request, len(requests)) for request in requests]

    def _call(self, strategy: str) -> None:
        self.calls += 1
        time.sleep(self.seconds)
        if self.calls in (self.interrupt_at, self.interrupted_call):
            raise KeyboardInterrupt
        if strategy == self.broken:
            raise RuntimeError("a fault\nover two lines")

    def _answer(self, strategy: str, request: Request, at_once: int = 1) -> Decoded:
        if len(request.prompt_ids) >= self.context_length:
            raise UserError(f"prompt of {len(request.prompt_ids)} tokens does not fit {self.context_length}")
        count = request.sampling.max_new_tokens
        tokens = [2 + (sum(request.prompt_ids) * (i + 1)) % 97 for i in range(count)]
        if strategy == self.differs:
            tokens[-1] += 1
        round_s = 0.01 * (1 + self.crowding * (at_once - 1)) if strategy == "ddtree" else 0.01
        decoded = fake_decoded(tokens, a_round=2 if strategy == "ddtree" else 1, ttft_s=0.1 * at_once, round_s=round_s)
        if request.round_times:
            return decoded
        return replace(decoded, rounds=tuple(replace(r, verify_s=None) for r in decoded.rounds))


def measure(*arguments, **options) -> list:
    """Every cell that ``harness.measuring.measure`` gives."""
    return list(chain.from_iterable(measuring.measure(*arguments, **options)))


def fake_decoded(tokens, a_round: int = 1, ttft_s: float = 0.1, round_s: float = 0.01) -> Decoded:
    """``tokens`` delivered ``a_round`` at a time, one round every ``round_s``; the last round is trimmed to fit."""
    rounds, left, now = [], len(tokens) - 1, ttft_s
    while left > 0:
        now += round_s
        drafted = a_round - 1
        rounds.append(Round(drafted, drafted, min(drafted, 1), drafted, min(a_round, left), now, verify_s=round_s / 2))
        left -= a_round
    return Decoded(tuple(tokens), "length", ttft_s, now, tuple(rounds))
