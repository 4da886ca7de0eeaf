"""What the harness asks of an engine, and all it may know of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from harness.errors import UserError
from harness.records import Decoded, Request


class Engine(Protocol):
    """Loads one target and decodes with any of the strategies that it was given.

    Built by Hydra from ``conf/engine/NAME.yaml`` as ``_target_(**options, model=..., strategies={name: config})``.
    Everything that can be wrong (files, shapes, budgets) is found in the constructor and raised as ``UserError``.

    Some things more are welcome and not asked for:

    - ``margin(prompt_ids, prefix) -> float``, the target's best logit minus its second best behind prompt and prefix, in
      the run's dtype. Without it the losslessness report has no margins.
    - ``decode_batch(strategy, requests) -> list[Decoded]``: decodes a sequence of requests together, with ``measure.batch`` above 1
      also where it holds but one. They may differ in length, sampling and end; each has its own tree and its own rounds. One
      answer each, in their order. All times count from the hand-over of the whole batch, so a TTFT holds the prefill of all; a
      request that ends before the others has its own ``end_s``. What it raises is the failure of every request.
    - ``concurrent = True``, an attribute of the class: ``decode`` may be called from several threads at once, so the engine can be put under load.
      It then has ``counters(strategy)``, what it has counted so far, and ``drafting_since(strategy, counters, answers)``,
      the ``Drafting`` behind all answers since, either of which may give ``None``.
    - ``peaks() -> (host bytes, device bytes)``, those of its last request, for an engine whose memory is not this process's.
    - ``measurable(arms, interest, **options)``, a static method: the arms that it can measure with these options, if not all.
    - ``costs()``, what rounds were measured to cost since the last call, for strategies that go by it: a list of mappings, each
      with its ``strategy``. They are kept in the run's folder.
    - ``remarks()``, lines that a reader must know.
    """

    end_tokens: tuple[int, ...]
    context_length: int

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation in the target's chat template, ready for the assistant's answer."""

    def text(self, tokens: list[int]) -> str:
        """The text of output tokens, special tokens left out."""

    def decode(self, strategy: str, request: Request) -> Decoded:
        """Decode one request. Raises ``UserError`` when the prompt does not fit the context."""

    def settings(self) -> Mapping[str, Any]:
        """The engine's live settings, for the record: ``dtype``, ``device``, ``model_sha256``, ``drafters`` (by strategy,
        each with the sha256 of its files, or ``None``), and what else changes speed or output.

        With ``weight_bytes``, ``cache_bytes_per_token`` and ``copy_bytes_per_s`` the summary gives the bandwidth use.
        """


def room_behind(request: Request, context_length: int) -> int:
    """Tokens that an answer may have behind the request's prompt. Raises ``UserError`` when that is none."""
    length = len(request.prompt_ids)
    if length >= context_length:
        raise UserError(f"prompt of {length} tokens leaves no room in a context of {context_length}; shorten the prompt")
    return context_length - length
