"""vLLM's scheduler, keeping count of every request's rounds: what was drafted, and what the target made of it.

vLLM's own counters are sums over requests. A round here is one step that gave a request tokens; the first such step is its
prefill. Counts are taken before vLLM trims an answer at its end or limit.
"""

from __future__ import annotations

from typing import NamedTuple

from vllm.v1.core.sched.scheduler import Scheduler


class Counted(NamedTuple):
    """``drafted`` tokens were verified and ``given`` tokens came of it, the target's own included."""

    drafted: int
    given: int


class CountingScheduler(Scheduler):
    """Counts while somebody watches: ``watch`` starts with no counts, ``counts`` holds them by request id."""

    counts: dict[str, list[Counted]] | None = None

    def watch(self) -> None:
        self.counts = {}

    def update_from_output(self, scheduler_output, model_runner_output):
        if self.counts is not None:
            self._count(scheduler_output, model_runner_output)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _count(self, scheduler_output, model_runner_output) -> None:
        drafts, given = scheduler_output.scheduled_spec_decode_tokens, model_runner_output.sampled_token_ids
        for request_id in scheduler_output.num_scheduled_tokens:
            index = model_runner_output.req_id_to_index.get(request_id)
            if index is None or not given or not len(given[index]):
                continue  # a chunk of a prompt gives nothing
            # Places that vLLM fills to keep a captured graph's shape hold -1: nobody drafted them.
            drafted = sum(token >= 0 for token in drafts.get(request_id, ()))
            self.counts.setdefault(request_id, []).append(Counted(drafted, len(given[index])))
