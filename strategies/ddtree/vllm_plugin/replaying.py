"""The runner where full graphs are asked for: vLLM captures passes over whole trees, and the plugin's own work is replayed, too."""

from __future__ import annotations

import torch
from vllm.v1.outputs import SamplerOutput

from strategies.ddtree.vllm_plugin.attention import FixedRows, StepAttention
from strategies.ddtree.vllm_plugin.plan import Step
from strategies.ddtree.vllm_plugin.replayed import ReplayedStep, recorder
from strategies.ddtree.vllm_plugin.runner import TreeRunner


class ReplayingRunner(TreeRunner):
    """Attention of whole trees reads fixed places. A step of nothing else, where all are greedy and have room for their next
    trees, is a ``ReplayedStep``; any other goes on as ``TreeRunner`` has it."""

    _step: Step | ReplayedStep | None

    def _begin(self, attention: type) -> None:
        super()._begin(attention)
        # vLLM captures whole passes of as many rows a request as there are speculative tokens and one.
        self._fixed = FixedRows(self.max_num_reqs, self.num_spec_tokens + 1, self.device)
        # With enforce_eager, or a cudagraph_mode of NONE, the largest size is 0.
        self._record = recorder(self.device, bool(self.vllm_config.compilation_config.max_cudagraph_capture_size))
        self._replayed: dict[int, ReplayedStep] = {}  # by number of requests
        self._last: ReplayedStep | None = None

    @torch.inference_mode()
    def capture_model(self) -> int:
        """With vLLM's graphs the plugin's own, for every number of requests whose pass is captured: none of their steps records, and what
        cannot be recorded fails here. A step of more requests records its own the first time."""
        taken, rows = super().capture_model(), self._fixed.widest
        if self._record is None:
            return taken
        # Elsewhere a step finds its slots at another place, and records that piece anew.
        slots = self.input_batch.block_table[self.drafter.kv_cache_gid].slot_mapping.gpu
        for requests in range(1, min(self.max_num_reqs, self.compilation_config.max_cudagraph_capture_size // rows) + 1):
            step = self._make(requests)
            # Whole chains of token 0 are accepted: nothing moves.
            step.accept(torch.zeros(requests * rows, 1, device=self.device), slots)
            hidden = requests * self.drafter.slots, self.drafter.hidden_size
            step.grow(torch.zeros(hidden, dtype=self.drafter.dtype, device=self.device))
            step.grown = False
        return taken

    # 1. trees and positions

    def _take(self, scheduler_output, num_scheduled_tokens) -> None:
        self.drafter.replayed = None
        if not self._can_replay(scheduler_output):
            self._keep_trees()
            super()._take(scheduler_output, num_scheduled_tokens)
            return
        names = self.input_batch.req_ids
        step = self._replayed.get(len(names)) or self._make(len(names))
        if not step.grown or step.names != names:
            self._keep_trees()
            step.load(names, [self._grown[name] for name in names])
        step.grown = False
        self._fixed.count(len(names))
        step.place()
        self._step = self._last = self.drafter.replayed = step

    def _can_replay(self, scheduler_output) -> bool:
        names, drafts = self.input_batch.req_ids, scheduler_output.scheduled_spec_decode_tokens
        rows, slots = self._fixed.widest, self.drafter.slots
        if self._record is None or scheduler_output.total_num_scheduled_tokens != len(names) * rows:
            return False
        for name in names:
            greedy_tree = name not in self.chains and not self.requests[name].sampling_params.temperature
            if not greedy_tree or len(drafts.get(name, ())) != rows - 1 or self._room(name, slots + 1) < slots:
                return False
        return True

    def _make(self, requests: int) -> ReplayedStep:
        drafter = self.drafter
        step = ReplayedStep(requests, self._fixed, self.positions, drafter.slots, drafter.logits_of_slots, self._caches, self._record)
        self._replayed[requests] = step
        return step

    def _keep_trees(self) -> None:
        """What the last replay grew, where it is not the next to verify it."""
        last = self._last
        if last is not None and last.grown:
            trees = last.trees.clone()
            self._grown |= {name: trees[:, index] for index, name in enumerate(last.names) if name in self.requests}
            last.grown = False

    # 2. attention

    def _has_trees(self, shape: dict) -> bool:
        if self._step is None:  # a dummy pass, which warms up or is captured: of trees if its requests have as many rows
            rows = self._fixed.widest
            return shape["max_query_len"] == rows and shape["num_tokens"] == shape["num_reqs"] * rows
        return super()._has_trees(shape)

    def _attention(self, slots: torch.Tensor, table: torch.Tensor) -> StepAttention:
        step = self._step
        if step is not None and not self._fixed.takes(step):
            return super()._attention(slots, table)
        if not isinstance(step, ReplayedStep):
            self._fixed.fill(step)
        return StepAttention(slots, self._fixed.rows(table), only_trees=True)

    def _determine_batch_execution_and_padding(self, *args, **kwargs):
        # vLLM goes by the number of rows, which a prompt's chunk or a chain can have, too.
        if self._step is not None and not self._fixed.takes(self._step):
            kwargs["force_uniform_decode"] = False
        return super()._determine_batch_execution_and_padding(*args, **kwargs)

    # 3. choice, walk, commit

    def _sample(self, logits, spec_decode_metadata) -> SamplerOutput:
        step = self._step
        if not isinstance(step, ReplayedStep):
            return super()._sample(logits, spec_decode_metadata)
        step.accept(logits, self._attended.slots)
        for name, depths in zip(step.names, step.depths.clone().unbind(), strict=True):
            self.shapes.setdefault(name, []).append(depths)
        return SamplerOutput(sampled_token_ids=step.sampled, logprobs_tensors=None)

    # 4. the next trees

    def _accepted_first(self, features: list[torch.Tensor]) -> list[torch.Tensor]:
        if not isinstance(self._step, ReplayedStep):
            return super()._accepted_first(features)
        return [torch.cat(features, dim=-1).index_select(0, self._step.order)]

    def _grow(self, sampled: torch.Tensor, chain: torch.Tensor) -> list[list[int]] | torch.Tensor:
        return self._step.drafts if isinstance(self._step, ReplayedStep) else super()._grow(sampled, chain)
