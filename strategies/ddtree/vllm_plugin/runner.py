"""vLLM's model runner, verifying trees: the seams of a step, in their order.

    _prepare_inputs             rows of a tree get positions by depth
    _build_attention_metadata   attention layers of the target learn of the trees
    _sample                     the target chooses at every row, the walk accepts, accepted rows move behind the context
    propose_draft_token_ids     the drafter gets the accepted rows only, its slots grow the next trees

Trees stay on the device: where every request gets a whole one, the host reads nothing but what vLLM reads anyway.
"""

from __future__ import annotations

import logging
from functools import cached_property

import torch
from vllm.v1.outputs import SamplerOutput

from kernels import accepted_path, best_first_tree, emitted
from strategies.ddtree.vllm_plugin.attention import Caches, StepAttention
from strategies.ddtree.vllm_plugin.choosing import StepChoices, Uniforms, sampler, seed_of
from strategies.ddtree.vllm_plugin.plan import Planned, Step
from strategies.ddtree.vllm_plugin.proposer import SlotProposer, block_size
from strategies.ddtree.vllm_plugin.refusals import needs_chain, refuse_layers
from strategies.dflash.vllm_worker import repair_loaded, repair_taps

_log = logging.getLogger("vllm.ddtree")


class TreeRunner:
    """Comes before vLLM's runner class. ``adopt`` turns a runner that vLLM has made, before it loads, into this one."""

    @classmethod
    def adopt(cls, runner, attention: type) -> None:
        runner.__class__ = type(f"Tree{type(runner).__name__}", (cls, type(runner)), {"__module__": cls.__module__})
        runner._begin(attention)

    def _begin(self, attention: type) -> None:
        config = self.vllm_config
        self._implementation = attention
        self._budget = config.additional_config["ddtree"]["budget"]
        slots = block_size(config.speculative_config.draft_model_config.hf_config) - 1
        self.drafter = SlotProposer(config, self.device, self, slots)
        self._longest = min(self._budget, slots) + 1
        self._root = torch.tensor([[0], [-1], [0]], device=self.device)
        self._every = torch.arange(0, device=self.device)
        self._step: Step | None = None
        # Of each request tokens, parents and depths ``[3, rows]`` of its next tree, on the device; its root is row 0.
        self._grown: dict[str, torch.Tensor] = {}
        self._uniforms: dict[str, Uniforms] = {}
        self._seeds = torch.Generator().manual_seed(config.model_config.seed)
        # Of each request the depths ``[rows]`` of the trees of its steps, on the device.
        self.shapes: dict[str, list[torch.Tensor]] = {}
        # Every request's state as vLLM keeps it: another one under a name is another request.
        self._known: dict[str, object] = {}
        self.chains: set[str] = set()
        self.chained_requests = 0

    def load_model(self, *args, **kwargs) -> None:
        repair_taps(self)
        super().load_model(*args, **kwargs)
        repair_loaded(self)
        layers = self.compilation_config.static_forward_context
        own = self.drafter._draft_attn_layer_names
        self._target_layers = {name: layer for name, layer in layers.items() if name not in own and hasattr(layer, "impl")}
        refuse_layers(self._target_layers, self._implementation)

    # 1. positions

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        self._meet_requests()
        self._take(scheduler_output, num_scheduled_tokens)
        return prepared

    def _take(self, scheduler_output, num_scheduled_tokens) -> None:
        self._step = self._plan(scheduler_output, num_scheduled_tokens)
        self._set_positions(self._step.bases[:, None] + self._step.depths)

    def _plan(self, scheduler_output, num_scheduled_tokens) -> Step:
        drafts, requests, end, logits = scheduler_output.scheduled_spec_decode_tokens, [], 0, 0
        for index, name in enumerate(self.input_batch.req_ids):
            drafted, new = len(drafts.get(name, ())), int(num_scheduled_tokens[index])
            # A tree whose last nodes vLLM left off is a tree: parents come before children.
            is_tree = drafted > 0 and name not in self.chains
            rows = 1 + drafted * is_tree
            end += new
            logits += 1 + drafted
            base = int(self.input_batch.num_computed_tokens_cpu[index]) + new - rows
            requests.append(Planned(name, end - rows, logits - rows, base, rows, is_tree))
        trees = [self._grown[request.name] if request.is_tree else self._root for request in requests]
        return Step(requests, trees, end, self.positions)

    def _set_positions(self, positions: torch.Tensor) -> None:
        """Give the rows of the step's trees these positions ``[requests, widest]``."""
        if self._step.has_trees:
            self.positions.scatter_(0, self._step.at.view(-1), positions.view(-1))

    # 2. attention

    def _build_attention_metadata(self, *args, **kwargs):
        self._implementation.trees_alone = self._step is not None and self._step.only_trees
        metadata, common = super()._build_attention_metadata(*args, **kwargs)
        if self._has_trees(kwargs):
            (own,) = {id(own): own for own in map(metadata.__getitem__, self._target_layers)}.values()
            own.ddtree = self._attended = self._attention(own.slot_mapping, own.block_table)
        return metadata, common

    def _has_trees(self, shape: dict) -> bool:
        """Whether this pass, whose metadata vLLM makes from ``shape``, is over trees."""
        return self._step is not None and self._step.has_trees

    def _attention(self, slots: torch.Tensor, table: torch.Tensor) -> StepAttention:
        return StepAttention.of(self._step, slots, table)

    # 3. choice, walk, commit

    def _sample(self, logits, spec_decode_metadata) -> SamplerOutput:
        step = self._step
        if step is None:  # a dummy run
            return super()._sample(logits, spec_decode_metadata)
        chained = [index for index, request in enumerate(step.requests) if request.name in self.chains]
        choices = StepChoices(logits, step.logits_at, self._samplers(logits))
        longest = min(self._longest, step.widest)
        step.path, step.kept, step.bonus = accepted_path(step.tokens, step.parents, step.depths, choices, longest)
        drafted = spec_decode_metadata.max_spec_len if chained and spec_decode_metadata is not None else 0
        sampled = emitted(step.tokens, step.path, step.kept, step.bonus, max(longest, drafted + 1))
        for index, request in enumerate(step.requests):
            if request.name not in self.chains and not self.discard_request_mask.np[index]:
                self.shapes.setdefault(request.name, []).append(step.depths[index, : request.rows])
        logprobs = None
        if chained:
            stock = super()._sample(logits, spec_decode_metadata)
            logprobs = stock.logprobs_tensors
            for index in chained:
                sampled[index] = stock.sampled_token_ids[index]
        if step.has_trees:
            self._caches.keep(self._attended.slots, step.starts, step.path)
        return SamplerOutput(sampled_token_ids=sampled, logprobs_tensors=logprobs)

    @cached_property
    def _caches(self) -> Caches:
        return self._implementation.caches(list(self._target_layers.values()))

    def _samplers(self, logits: torch.Tensor) -> dict:
        """Those of the step's requests, by index, that are neither greedy nor chains nor chunks of a prompt."""
        samplers = {}
        for index, request in enumerate(self._step.requests):
            state = self.requests[request.name]
            params = state.sampling_params
            if params.temperature and request.name not in self.chains and not self.discard_request_mask.np[index]:
                if request.name not in self._uniforms:
                    self._uniforms[request.name] = Uniforms(seed_of(params, self._seeds), self.device)
                samplers[index] = sampler(logits, request, params, self._uniforms[request.name], len(state.output_token_ids))
        return samplers

    # 4. the next trees

    def propose_draft_token_ids(
        self, scheduler_output, sampled_token_ids, sampling_metadata, hidden_states, sample_hidden_states,
        aux_hidden_states, spec_decode_metadata, common_attn_metadata, slot_mappings,
    ) -> list[list[int]] | torch.Tensor:  # fmt: skip
        chain = super().propose_draft_token_ids(
            scheduler_output, sampled_token_ids, sampling_metadata, hidden_states, sample_hidden_states,
            self._accepted_first(aux_hidden_states), spec_decode_metadata, common_attn_metadata, slot_mappings,
        )  # fmt: skip
        self._drafted = True
        return self._grow(sampled_token_ids, chain)

    def _accepted_first(self, features: list[torch.Tensor]) -> list[torch.Tensor]:
        """Accepted rows' features at the front of their request's rows, and positions back to one after another.

        ``features`` ``[tokens, hidden]`` each, which vLLM would join next.
        """
        step = self._step
        if not step.has_trees:
            return features
        self._set_positions(step.linear)
        joined = torch.cat(features, dim=-1)
        if len(self._every) < len(joined):
            self._every = torch.arange(len(joined), device=self.device)
        firsts = step.at[:, : step.path.shape[1]].reshape(-1)
        order = self._every[: len(joined)].scatter(0, firsts, step.at.gather(1, step.path).view(-1))
        return [joined.index_select(0, order)]

    def _grow(self, sampled: torch.Tensor, chain: torch.Tensor) -> list[list[int]] | torch.Tensor:
        """Every request's next drafted tokens in tree order; trees are kept until they are verified.

        A tensor ``[requests, nodes]`` where all requests get whole trees, which vLLM then reads as it reads its own drafts.
        """
        slots, names, discarded = self._slots(sampled), self.input_batch.req_ids, self.discard_request_mask.np
        grown = {
            depth: torch.stack(best_first_tree(self._step.bonus, self.drafter.slot_logits[:, :depth], self._budget)[:3])
            for depth in set(slots) if depth > 0
        }  # fmt: skip
        for index, name in enumerate(names):
            self._grown.pop(name, None)
            if slots[index] > 0 and name not in self.chains:
                self._grown[name] = grown[slots[index]][:, index]
        if grown.keys() == {self.drafter.slots} and not self.chains.intersection(names):
            trees = grown[self.drafter.slots]
            if trees.shape[2] == self.num_spec_tokens + 1 and all(depth > 0 or discarded[i] for i, depth in enumerate(slots)):
                return trees[0, :, 1:]  # vLLM overlooks those for chunks of prompts
        tokens = {depth: trees[0, :, 1:].tolist() for depth, trees in grown.items()}
        return [
            [] if depth <= 0 else chain[index, :depth].tolist() if name in self.chains else tokens[depth][index]
            for index, (depth, name) in enumerate(zip(slots, names, strict=True))
        ]

    def _slots(self, sampled: torch.Tensor) -> list[int]:
        """How deep each request's next tree may be; 0 or less: it gets none. Near the end of a context the host reads ``sampled``."""
        names, deepest = self.input_batch.req_ids, self.drafter.slots
        given = [sampled.shape[1]] * len(names)
        if any(self._room(name, most) < deepest for name, most in zip(names, given, strict=True)):
            given = (sampled >= 0).sum(dim=1).tolist()
        discarded = self.discard_request_mask.np
        return [0 if discarded[index] else min(deepest, self._room(name, given[index])) for index, name in enumerate(names)]

    def _room(self, name: str, given: int) -> int:
        """How deep a tree vLLM has places for: behind the bonus token up to the end of the context."""
        state = self.requests[name]
        return self.max_model_len - state.num_prompt_tokens - len(state.output_token_ids) - given - 1

    # around a step

    def sample_tokens(self, grammar_output):
        self._drafted = False
        try:
            return super().sample_tokens(grammar_output)
        finally:
            self._step = None
            if torch.is_tensor(self._draft_token_ids) and not self._drafted:
                # vLLM did not draft, as it does near the end of a context, and would have zeros verified.
                self._draft_token_ids = [[] for _ in self.input_batch.req_ids]

    def _meet_requests(self) -> None:
        fresh = {name for name, state in self.requests.items() if self._known.get(name) is not state}
        gone = self._known.keys() - self.requests.keys()
        if not fresh and not gone:
            return
        self._known = dict(self.requests)
        self.chains -= gone | fresh
        for known in (self._grown, self._uniforms, self.shapes):
            for name in gone | fresh:
                known.pop(name, None)
        for name in fresh:
            if reason := needs_chain(self.requests[name].sampling_params):
                self.chains.add(name)
                self.chained_requests += 1
                _log.info("DDTree: request %s asks for %s and is verified as a chain (%d so far)", name, reason, self.chained_requests)
