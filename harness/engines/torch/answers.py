"""What a request has been given so far, and when it has enough: the host's side of a decode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from harness.records import Decoded, Request, Round


@dataclass
class Answer:
    """Tokens delivered so far to one request, and its rounds. ``room`` is what the model's context leaves behind its prompt."""

    request: Request
    room: int
    ttft_s: float = 0.0
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def limit(self) -> int:
        return min(self.request.sampling.max_new_tokens, self.room)

    def first(self, token: int, at_s: float) -> None:
        """The token that prefill gave."""
        self.ttft_s = at_s
        self._deliver([token])

    def add(self, tokens: list[int], proposed: int, depth: int, width: int, at_s: float) -> None:
        """What one round gave: accepted tokens, then the bonus token. Once there is a finish reason, nothing is added."""
        if self.finish_reason:
            return
        # Past the context the target confirms nothing; past the limit it does, and what it confirms is accepted, not emitted.
        accepted = min(len(tokens), self.room - len(self.tokens)) - 1
        emitted = self._deliver(tokens)
        self.rounds.append(Round(proposed, depth, width, accepted, emitted, at_s))

    def decoded(self, phases: list[dict[str, float]]) -> Decoded:
        """The record. ``phases`` are those of all rounds of the batch, or none; a request's rounds are the first of them."""
        rounds = self.rounds
        if phases:
            rounds = [replace(own, **seconds) for own, seconds in zip(rounds, phases)]
        end = rounds[-1].at_s if rounds else self.ttft_s
        return Decoded(tuple(self.tokens), self.finish_reason, self.ttft_s, end, tuple(rounds))

    def _deliver(self, tokens: list[int]) -> int:
        """Append up to the first end token (kept) or the limit; returns how many were delivered."""
        before = len(self.tokens)
        for token in tokens:
            self.tokens.append(token)
            if token in self.request.end_tokens:
                self.finish_reason = "stop"
            elif len(self.tokens) == self.limit:
                self.finish_reason = "context" if self.room < self.request.sampling.max_new_tokens else "length"
            if self.finish_reason:
                break
        return len(self.tokens) - before
