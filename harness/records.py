"""Plain data that travels from a suite to a table: what was asked, and what came back.

Nothing here knows torch, a strategy or a file, so every engine can fill these records and every metric can read them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


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
    """One prompt, already rendered to token ids, on its way to an engine. ``round_times`` asks for each round's phases."""

    prompt_ids: tuple[int, ...]
    end_tokens: tuple[int, ...]
    sampling: Sampling
    round_times: bool = True


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


@dataclass(frozen=True)
class Decoded:
    """One finished request. ``tokens`` holds the output, trimmed; its first token comes from prefill and no round.

    ``finish_reason`` is ``stop`` (an end token, which is kept as the last token), ``length`` (max_new_tokens) or
    ``context`` (the model's context was full). Times are seconds since the request was handed over.
    """

    tokens: tuple[int, ...]
    finish_reason: str
    ttft_s: float
    end_s: float
    rounds: tuple[Round, ...] = field(default_factory=tuple)

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> Decoded:
        rounds = tuple(Round(**r) for r in data["rounds"])
        return cls(tuple(data["tokens"]), data["finish_reason"], data["ttft_s"], data["end_s"], rounds)
