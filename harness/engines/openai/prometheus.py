"""What a server counts about itself, from the text of its ``/metrics``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.records import Drafting

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')

Sample = tuple[str, dict[str, str], float]


def samples(text: str) -> Iterator[Sample]:
    """Name, labels and value of every sample; comments and lines that are none are passed over."""
    for line in text.splitlines():
        if not line.startswith("#") and (found := _SAMPLE.match(line)):
            try:
                value = float(found[3])
            except ValueError:
                continue
            yield found[1], dict(_LABEL.findall(found[2] or "")), value


@dataclass(frozen=True)
class Counters:
    """vLLM's counters since the server's start, summed over its engines. ``drafts`` ``None``: it counts no drafts.

    ``generated`` counts output tokens. A draft is a round that proposed something; ``accepted`` is before trimming.
    """

    generated: int
    drafts: int | None = None
    proposed: int = 0
    accepted: int = 0
    accepted_to_depth: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str) -> Counters | None:
        """``None`` for a server without vLLM's counters."""
        totals: dict[str, int] = {}
        depths: dict[int, int] = {}
        for name, labels, value in samples(text):
            name = name.removeprefix("vllm:").removesuffix("_total")
            if name == "spec_decode_num_accepted_tokens_per_pos" and labels.get("position", "").isdigit():
                depths[int(labels["position"])] = depths.get(int(labels["position"]), 0) + int(value)
            elif name in _TOTALS:
                totals[_TOTALS[name]] = totals.get(_TOTALS[name], 0) + int(value)
        if "generated" not in totals:
            return None
        return cls(**totals, accepted_to_depth=tuple(depths.get(d, 0) for d in range(max(depths, default=-1) + 1)))

    def since(self, before: Counters) -> Counters:
        """What was counted between ``before`` and now."""
        earlier = before.accepted_to_depth
        padded = [*earlier, *[0] * (len(self.accepted_to_depth) - len(earlier))]
        return Counters(
            self.generated - before.generated,
            None if self.drafts is None else self.drafts - (before.drafts or 0),
            self.proposed - before.proposed,
            self.accepted - before.accepted,
            tuple(now - then for now, then in zip(self.accepted_to_depth, padded)),
        )

    def drafting(self, requests: int) -> Drafting:
        """The rounds behind ``requests`` whole answers, which got ``generated`` tokens in all.

        The server counts the rounds that proposed something: D of them, A accepted tokens. A round that proposed nothing
        delivered one token, so R = max(D, generated - requests - A): exact unless answers were trimmed and rounds without
        proposals came together, and R = generated - requests for a server that drafts nothing.
        """
        rounds = max(self.drafts or 0, self.generated - requests - self.accepted)
        reached = len(self.accepted_to_depth)
        while reached and not self.accepted_to_depth[reached - 1]:
            reached -= 1
        return Drafting(rounds, self.proposed, self.accepted, self.accepted_to_depth[:reached])


_TOTALS = {
    "generation_tokens": "generated",
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "proposed",
    "spec_decode_num_accepted_tokens": "accepted",
}


def gauge(text: str, name: str) -> float | None:
    """The sum over its engines of one of vLLM's gauges, ``None`` where the server has none of this name."""
    values = [value for found, _, value in samples(text) if found == f"vllm:{name}"]
    return sum(values) if values else None


def prefix_caching(text: str) -> bool | None:
    """Whether answers can find an earlier prompt's cache, as the server says; ``None``: it does not say."""
    for name, labels, _ in samples(text):
        if name == "vllm:cache_config_info" and "enable_prefix_caching" in labels:
            return labels["enable_prefix_caching"] == "True"
    return None
