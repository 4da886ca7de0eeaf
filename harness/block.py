"""What an engine counted while one strategy had its turn under load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness import typed
from harness.records import Decoded, Drafting


@dataclass(frozen=True)
class Block:
    """One strategy's turn under load. ``drafting`` is behind all its ``answers``, whose tokens are ``output_tokens``."""

    strategy: str
    repetition: int
    session: int
    answers: int
    output_tokens: int
    drafting: Drafting | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Block:
        return typed.record(cls, data)

    def as_one_answer(self) -> Decoded:
        """All its rounds as if one answer had them, with as many tokens behind its first as all answers behind theirs."""
        return Decoded((), "length", 0.0, 0.0, drafting=self.drafting, output_tokens=self.output_tokens - self.answers + 1)
