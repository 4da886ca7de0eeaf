"""The one decode loop: prefill, then rounds until every request of the batch has its answer, for every strategy alike."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from harness.engines.torch.answers import Answer
from harness.engines.torch.round_clock import RoundClock
from harness.engines.torch.rounds import Rounds, slack
from harness.models.dense import DenseModel
from harness.records import Decoded, Request
from strategies.base import Proposer


@torch.inference_mode()
def decode(model: DenseModel, proposer: Proposer, requests: Sequence[Request]) -> list[Decoded]:
    """Decode requests as one batch. Every prompt must leave room for a token within the model's context.

    They share their sampling but for seed and ``max_new_tokens``. All times count from here.
    """
    started = time.perf_counter()
    answers = [Answer(request, model.config.context_length - len(request.prompt_ids)) for request in requests]
    capacity = max(len(answer.request.prompt_ids) + answer.limit for answer in answers) + slack(proposer)
    clock = RoundClock(model.embed.weight.device, requests[0].round_times)
    rounds = Rounds(model, proposer, len(requests), capacity, clock)
    proposer.drafting_done = lambda: clock.mark("draft")
    try:
        first = rounds.begin([r.prompt_ids for r in requests], requests[0].sampling, [r.sampling.seed for r in requests])
        ttft = time.perf_counter() - started
        for answer, token in zip(answers, first, strict=True):
            answer.first(token, ttft)
        while any(answer.finish_reason is None for answer in answers):
            rounds.step()
            told = rounds.report.tolist()
            at_s = time.perf_counter() - started
            for answer, (kept, depth, width, *tokens) in zip(answers, told, strict=True):
                answer.add(tokens[:kept], rounds.proposed, depth, width, at_s)
    finally:
        del proposer.drafting_done
    phases = clock.seconds() if requests[0].round_times else []
    return [answer.decoded(phases) for answer in answers]
