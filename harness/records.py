"""Plain data that travels from a suite to a table: what was asked, and what came back.

Nothing here knows torch, a strategy or a file, so every engine can fill these records and every metric can read them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from harness import typed


@dataclass(frozen=True)
class Sampling:
    """How the target chooses a token. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 switch a filter off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 128


@dataclass(frozen=True)
class Request:
    """One prompt, already rendered to token ids, on its way to an engine. ``round_times`` asks for each round's phases.

    ``messages`` is the conversation behind the ids, for engines that render it themselves. ``alone`` False: other requests
    of this run are under way at the same time.
    """

    prompt_ids: tuple[int, ...]
    end_tokens: tuple[int, ...]
    sampling: Sampling
    round_times: bool = True
    messages: tuple[dict[str, str], ...] = ()
    alone: bool = True


@dataclass(frozen=True)
class Round:
    """One draft, one target pass, one acceptance.

    ``proposed`` counts drafted nodes (the root is not one), ``depth`` and ``width`` describe the tree (width: the most
    nodes at one depth), ``accepted`` counts drafted tokens the target confirmed before any trimming, and ``emitted``
    the tokens delivered after trimming at an end token and at the limit. ``at_s`` is when they were available, in
    seconds since the request was handed to the engine; the other times are seconds spent in each phase, ``None``
    where they were not taken.
    """

    proposed: int
    depth: int
    width: int
    accepted: int
    emitted: int
    at_s: float
    draft_s: float | None = None
    build_s: float | None = None
    verify_s: float | None = None
    commit_s: float | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.accepted <= self.proposed and 0 <= self.emitted <= self.accepted + 1):
            raise ValueError(f"a round of {self.proposed} nodes cannot accept {self.accepted} and emit {self.emitted} tokens")


@dataclass(frozen=True)
class Chunk:
    """Tokens that arrived together, ``at_s`` seconds after the request was handed over; ``None``: nobody counted them."""

    tokens: int | None
    at_s: float


@dataclass(frozen=True)
class Drafting:
    """What an engine counted over one or several requests whose rounds it does not show one by one.

    ``accepted`` is before any trimming; entry d - 1 of ``accepted_to_depth`` counts the rounds that accepted d or more.
    """

    rounds: int
    proposed: int
    accepted: int
    accepted_to_depth: tuple[int, ...] = ()


@dataclass(frozen=True)
class Decoded:
    """One finished request. ``tokens`` holds the output, trimmed; its first token comes from prefill and no round.

    ``finish_reason`` is ``stop`` (an end token, which is kept as the last token), ``length`` (max_new_tokens) or
    ``context`` (the model's context was full). Times are seconds since the request was handed over.

    An engine behind a network shows no rounds: it has ``chunks``, the first one with the first token, and ``drafting``
    where the server counts. One that gives no token ids leaves ``tokens`` empty and has ``output_tokens``, the server's own
    count, and ``text``. Raises ``ValueError`` for rounds that do not deliver the tokens, and for times out of order.
    """

    tokens: tuple[int, ...]
    finish_reason: str
    ttft_s: float
    end_s: float
    rounds: tuple[Round, ...] = field(default_factory=tuple)
    chunks: tuple[Chunk, ...] = ()
    drafting: Drafting | None = None
    output_tokens: int | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        delivered = 1 + sum(r.emitted for r in self.rounds)
        if self.rounds and delivered != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens, but prefill and {len(self.rounds)} rounds delivered {delivered}")
        times = [0.0, self.ttft_s, *(r.at_s for r in self.rounds), self.end_s]
        if not (all(a <= b for a, b in pairwise(times)) and math.isfinite(self.end_s)):
            raise ValueError(f"times out of order: first token at {self.ttft_s} s, last at {self.end_s} s")

    @property
    def output(self) -> tuple:
        """What two answers are compared by: the token ids, the whole text where there are none."""
        return self.tokens if self.text is None else (self.text,)

    def to_json(self) -> dict[str, Any]:
        """What an engine did not give is left out."""
        return {name: value for name, value in asdict(self).items() if value not in (None, ()) or name in ("tokens", "rounds")}

    @classmethod
    def from_json(cls, data: dict) -> Decoded:
        return typed.record(cls, data)
