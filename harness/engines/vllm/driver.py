"""Drives vLLM's engine step by step and keeps, for every request, what a record needs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from harness.engines.vllm.arguments import SCHEDULER
from harness.records import Decoded, Request, Round


@dataclass
class Running:
    """A request under way: tokens delivered, and when each step's were available (seconds since it was handed over)."""

    request: Request
    limit_reason: str
    started: float
    tokens: list[int] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)


class Driver:
    """One vLLM engine in this process. Raises what vLLM raises."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.engine = LLMEngine.from_engine_args(EngineArgs(**arguments, scheduler_cls=SCHEDULER, disable_log_stats=True))
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self.scheduler.watch()
        self.context_length = self.engine.model_config.max_model_len
        self.device = self.engine.model_executor.driver_worker.worker.model_runner.device
        self.running: dict[str, Running] = {}
        self._ids: dict[str, str] = {}
        # A strategy's worker may know the shapes of its trees; a chain's are its length.
        self._shapes = hasattr(self.engine.model_executor.driver_worker.worker, "tree_shapes")

    def add(self, name: str, request: Request) -> None:
        """Hand over a request. The engine takes it up at its next step."""
        started = time.perf_counter()
        room = self.context_length - len(request.prompt_ids)
        wanted = request.sampling.max_new_tokens
        limit, reason = (wanted, "length") if wanted <= room else (room, "context")
        self.running[name] = Running(request, reason, started)
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        self._ids[name] = self.engine.add_request(name, prompt, sampling_params(request, limit))

    def step(self) -> dict[str, Decoded]:
        """One step of the engine; the requests that it finished."""
        finished = {}
        outputs = self.engine.step()
        now = time.perf_counter()
        for output in outputs:
            running = self.running.get(output.request_id)
            if running is None:
                continue
            new = list(output.outputs[0].token_ids)
            running.tokens += new
            if new:
                running.steps.append((len(new), now - running.started))
            if output.finished:
                finished[output.request_id] = self._decoded(output.request_id, output.outputs[0].finish_reason)
        return finished

    def abort(self, name: str) -> None:
        self.engine.abort_request([name])
        self._forget(name)

    def decode(self, request: Request) -> Decoded:
        """One request alone."""
        self.add("only", request)
        try:
            while True:
                if decoded := self.step().get("only"):
                    return decoded
        finally:
            if "only" in self.running:
                self.abort("only")

    def margin(self, prompt_ids: list[int]) -> float:
        """The best logit minus the second best behind ``prompt_ids``."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(temperature=0, max_tokens=1, logprobs=2, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
        self.engine.add_request("margin", {"prompt_token_ids": prompt_ids}, params)
        outputs = []
        while not outputs:
            outputs = [output for output in self.engine.step() if output.request_id == "margin" and output.finished]
        best, second = sorted((entry.logprob for entry in outputs[0].outputs[0].logprobs[0].values()), reverse=True)[:2]
        return best - second

    def _decoded(self, name: str, reason: str) -> Decoded:
        running = self.running[name]
        counts = self.scheduler.counts[self._ids[name]]
        shapes = self._take_shapes(name)
        (_, ttft), *steps = running.steps
        if len(counts) != len(running.steps):
            raise RuntimeError(f"request {name}: {len(running.steps)} steps delivered tokens, {len(counts)} were counted")
        rounds = []
        for number, ((emitted, at_s), counted) in enumerate(zip(steps, counts[1:], strict=True)):
            depth, width = shapes.get(number) or (counted.drafted, min(counted.drafted, 1))
            rounds.append(Round(counted.drafted, depth, width, counted.given - 1, emitted, at_s))
        finish_reason = "stop" if reason == "stop" else running.limit_reason
        decoded = Decoded(tuple(running.tokens), finish_reason, ttft, running.steps[-1][1], tuple(rounds))
        self._forget(name)
        return decoded

    def _take_shapes(self, name: str) -> dict[int, tuple[int, int]]:
        """Depth and width of each round's tree, by the round's number from 0; the worker's first is the prefill's."""
        if not self._shapes:
            return {}
        (taken,) = self.engine.collective_rpc("tree_shapes", args=(self._ids[name],))
        return dict(enumerate(taken[1:]))

    def _forget(self, name: str) -> None:
        self.running.pop(name, None)
        self.scheduler.counts.pop(self._ids.pop(name), None)


def sampling_params(request: Request, limit: int):
    """The request's sampling in vLLM's words. End tokens end it and are kept as its last token."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    asked = request.sampling
    return SamplingParams(
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        seed=asked.seed if asked.temperature else None,
        max_tokens=limit,
        stop_token_ids=list(request.end_tokens),
        ignore_eos=True,  # the request's own end tokens, nothing that vLLM reads from the model's files
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
