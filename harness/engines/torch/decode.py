"""The one decode loop: prefill, then rounds until every request of the batch has its answer, for every strategy alike."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from harness.engines.torch.answers import Answer
from harness.engines.torch.handover import Handover
from harness.engines.torch.rounds import Rounds, needed_capacity
from harness.engines.torch.tree_size import CostTable
from harness.models.dense import DenseModel
from harness.records import Decoded, Request
from strategies.base import Proposer


def decode(
    model: DenseModel, proposer: Proposer, requests: Sequence[Request], costs: CostTable | None = None
) -> list[Decoded]:
    """Decode requests as one batch, eagerly. ``costs`` are needed by a proposer with a ladder (``RoundCosts.table``)."""
    capacity = needed_capacity(model, proposer, requests)
    return decode_with(Rounds(model, proposer, len(requests), capacity, requests[0].round_times, costs), requests)


@torch.inference_mode()
def decode_with(rounds: Rounds, requests: Sequence[Request]) -> list[Decoded]:
    """Decode requests as one batch. Every prompt must leave room for a token within the model's context.

    They share their sampling but for seed and ``max_new_tokens``. All times count from here.
    """
    started = time.perf_counter()
    context_length = rounds.model.config.context_length
    answers = [Answer(request, context_length - len(request.prompt_ids)) for request in requests]
    first = rounds.begin([r.prompt_ids for r in requests], requests[0].sampling, [r.sampling.seed for r in requests])
    ttft = time.perf_counter() - started
    for answer, token in zip(answers, first, strict=True):
        answer.first(token, ttft)
    handover = Handover(rounds.report)
    while any(answer.finish_reason is None for answer in answers):
        rounds.step()
        handover.give()
        told = handover.take()
        if told is None:
            continue
        at_s = time.perf_counter() - started
        for answer, (kept, proposed, depth, width, *tokens) in zip(answers, told, strict=True):
            answer.add(tokens[:kept], proposed, depth, width, at_s)
    phases = rounds.clock.seconds() if rounds.clock.wanted else []
    return [answer.decoded(phases) for answer in answers]
