"""vLLM's model runner, verifying trees: four seams of a step, in their order.

    _prepare_inputs             rows of a tree get positions by depth
    _build_attention_metadata   attention layers of the target learn of the trees
    _sample                     the target chooses at every row, the walk accepts, accepted rows move behind the context
    propose_draft_token_ids     the drafter gets the accepted rows only, its slots grow the next trees
"""

from __future__ import annotations

import logging

import torch
from vllm.v1.outputs import SamplerOutput

from kernels import accept, best_first_tree
from strategies.ddtree.vllm_plugin.attention import StepAttention, commit
from strategies.ddtree.vllm_plugin.choosing import Choices, Uniforms
from strategies.ddtree.vllm_plugin.plan import Grown, Step, Verified
from strategies.ddtree.vllm_plugin.proposer import SlotProposer
from strategies.ddtree.vllm_plugin.refusals import needs_chain, refuse_layers
from strategies.dflash.vllm_worker import repair_key_norms, repair_taps

_log = logging.getLogger("vllm.ddtree")


class TreeRunner:
    """Comes before vLLM's runner class. ``adopt`` turns a runner that vLLM has made, before it loads, into this one."""

    @classmethod
    def adopt(cls, runner, attention: type) -> None:
        runner.__class__ = type(f"Tree{type(runner).__name__}", (cls, type(runner)), {"__module__": cls.__module__})
        runner._begin(attention)

    def _begin(self, attention: type) -> None:
        config = self.vllm_config
        self._attention = attention
        self._budget = config.additional_config["ddtree"]["budget"]
        slots = block_size(config.speculative_config.draft_model_config.hf_config) - 1
        self.drafter = SlotProposer(config, self.device, self, slots)
        self._step: Step | None = None
        self._grown: dict[str, Grown] = {}
        self._uniforms: dict[str, Uniforms] = {}
        self._seeds = torch.Generator().manual_seed(config.model_config.seed)
        self.shapes: dict[str, list[tuple[int, int]]] = {}
        self.chains: set[str] = set()
        self.chained_requests = 0

    def load_model(self, *args, **kwargs) -> None:
        repair_taps(self)
        super().load_model(*args, **kwargs)
        repair_key_norms(self.drafter)
        layers = self.compilation_config.static_forward_context
        own = self.drafter._draft_attn_layer_names
        self._target_layers = {name: layer for name, layer in layers.items() if name not in own and hasattr(layer, "impl")}
        refuse_layers(self._target_layers, self._attention)

    # 1. positions

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        self._forget_finished()
        self._step = self._plan(scheduler_output, num_scheduled_tokens)
        self._set_positions([tree.base + depth for tree in self._step.trees for depth in tree.tree.depths])
        return prepared

    def _plan(self, scheduler_output, num_scheduled_tokens) -> Step:
        drafts, end, requests = scheduler_output.scheduled_spec_decode_tokens, 0, []
        for index, name in enumerate(self.input_batch.req_ids):
            drafted = list(drafts.get(name, ()))
            end += int(num_scheduled_tokens[index])
            rows = len(drafted) + 1
            base = int(self.input_batch.num_computed_tokens_cpu[index]) + int(num_scheduled_tokens[index]) - rows
            grown = self._grown.get(name)
            tree = grown.cut(rows) if grown and grown.tokens[1:rows] == drafted else Grown.chain(drafted)
            requests.append(Verified(index, end - rows, base, tree))
        return Step(requests, end)

    def _set_positions(self, positions: list[int]) -> None:
        """Give the rows of the step's trees these positions, in order."""
        if positions:
            self.positions[self._tree_rows()] = torch.tensor(positions, dtype=self.positions.dtype, device=self.device)

    def _tree_rows(self) -> torch.Tensor:
        rows = [row for tree in self._step.trees for row in range(tree.start, tree.start + tree.rows)]
        return torch.tensor(rows, device=self.device)

    # 2. attention

    def _build_attention_metadata(self, *args, **kwargs):
        metadata, common = super()._build_attention_metadata(*args, **kwargs)
        if self._step is not None and self._step.trees:
            told: dict[int, StepAttention] = {}
            for name in self._target_layers:
                own = metadata[name]
                if id(own) not in told:
                    own.ddtree = told[id(own)] = StepAttention(self._step, own.slot_mapping, own.block_table)
            (self._attended,) = told.values()
        return metadata, common

    # 3. choice, walk, commit

    def _sample(self, logits, spec_decode_metadata) -> SamplerOutput:
        step = self._step
        if step is None:  # a dummy run
            return super()._sample(logits, spec_decode_metadata)
        width = max(request.rows for request in step.requests)
        sampled = torch.full((len(step.requests), width), -1, dtype=torch.int32)
        choices, chained, first = Choices(logits), [], 0
        for request in step.requests:
            name = self.input_batch.req_ids[request.index]
            if name in self.chains:
                chained.append(request)
            elif not self.discard_request_mask.np[request.index]:
                given = self._walk(name, request, choices, first)
                sampled[request.index, : len(given)] = torch.tensor(given, dtype=torch.int32)
                self.shapes.setdefault(name, []).append(request.tree.shape)
            else:
                sampled[request.index, 0] = 0  # a chunk of a prompt: vLLM throws its token away
            first += request.rows
        sampled = sampled.to(self.device)
        logprobs = None
        if chained:
            stock = super()._sample(logits, spec_decode_metadata)
            logprobs = stock.logprobs_tensors
            for request in chained:
                sampled[request.index] = stock.sampled_token_ids[request.index]
        if step.trees:
            commit(list(self._target_layers.values()), self._attended.slots, step.trees)
        return SamplerOutput(sampled_token_ids=sampled, logprobs_tensors=logprobs)

    def _walk(self, name: str, request: Verified, choices: Choices, first: int) -> list[int]:
        """The tokens that the step gives a request whose logits begin at row ``first``; fills its accepted path."""
        state, tree = self.requests[name], request.tree
        given = len(state.output_token_ids)
        choose = choices.of(first, request.rows, state.sampling_params, lambda: self._numbers(name, state), given)
        paths, bonuses = accept(torch.tensor([tree.tokens]), torch.tensor([tree.parents]), choose)
        request.path = paths[0]
        return [*(tree.tokens[row] for row in request.path[1:]), bonuses[0]]

    def _numbers(self, name: str, state) -> Uniforms:
        if name not in self._uniforms:
            seed = state.sampling_params.seed
            if seed is None:
                seed = int(torch.randint(1 << 62, (1,), generator=self._seeds))
            self._uniforms[name] = Uniforms(seed)
        return self._uniforms[name]

    # 4. the next trees

    def propose_draft_token_ids(
        self, scheduler_output, sampled_token_ids, sampling_metadata, hidden_states, sample_hidden_states,
        aux_hidden_states, spec_decode_metadata, common_attn_metadata, slot_mappings,
    ) -> list[list[int]]:  # fmt: skip
        self._accepted_first(aux_hidden_states)
        chain = super().propose_draft_token_ids(
            scheduler_output, sampled_token_ids, sampling_metadata, hidden_states, sample_hidden_states,
            aux_hidden_states, spec_decode_metadata, common_attn_metadata, slot_mappings,
        )  # fmt: skip
        return self._grow(sampled_token_ids.tolist(), chain)

    def _accepted_first(self, features: list[torch.Tensor]) -> None:
        """Bring accepted rows' features to the front of their request's rows, and positions back to one after another."""
        trees = self._step.trees
        if not trees:
            return
        self._set_positions([tree.base + row for tree in trees for row in range(tree.rows)])
        moves = [(tree.start + row, tree.start + place) for tree in trees for place, row in enumerate(tree.path) if row != place]
        if moves:
            sources, targets = torch.tensor(moves, device=self.device).T
            for feature in features:
                feature[targets] = feature[sources]

    def _grow(self, sampled: list[list[int]], chain: torch.Tensor) -> list[list[int]]:
        """Every request's next drafted tokens in tree order; trees are kept until they are verified."""
        drafts: list[list[int]] = [[] for _ in sampled]
        wanted: dict[int, list[int]] = {}
        for index, name in enumerate(self.input_batch.req_ids):
            self._grown.pop(name, None)
            given = [token for token in sampled[index] if token >= 0]
            if self.discard_request_mask.np[index] or not given:
                continue
            slots = min(self.drafter.slots, self._room(name, len(given)))
            if slots > 0 and name in self.chains:
                drafts[index] = chain[index, :slots].tolist()
            elif slots > 0:
                wanted.setdefault(slots, []).append(index)
        for slots, indices in wanted.items():
            roots = torch.tensor([[t for t in sampled[index] if t >= 0][-1] for index in indices], device=self.device)
            grown = best_first_tree(roots, self.drafter.slot_logits[indices, :slots], self._budget)
            for index, tokens, parents, depths in zip(indices, *(column.tolist() for column in grown[:3]), strict=True):
                self._grown[self.input_batch.req_ids[index]] = Grown(tokens, parents, depths)
                drafts[index] = tokens[1:]
        return drafts

    def _room(self, name: str, given: int) -> int:
        """How deep a tree vLLM has places for: behind the bonus token up to the end of the context."""
        state = self.requests[name]
        return self.max_model_len - state.num_prompt_tokens - len(state.output_token_ids) - given - 1

    # around a step

    def sample_tokens(self, grammar_output):
        try:
            return super().sample_tokens(grammar_output)
        finally:
            self._step = None
            if torch.is_tensor(self._draft_token_ids):
                # vLLM did not draft, as it does near the end of a context, and would have zeros verified.
                self._draft_token_ids = [[] for _ in self.input_batch.req_ids]

    def _forget_finished(self) -> None:
        for known in (self._grown, self._uniforms, self.shapes):
            for name in known.keys() - self.requests.keys():
                del known[name]
        self.chains &= self.requests.keys()
        for name, state in self.requests.items():
            if name not in self.chains and (reason := needs_chain(state.sampling_params)):
                self.chains.add(name)
                self.chained_requests += 1
                _log.info("DDTree: request %s asks for %s and is verified as a chain (%d so far)", name, reason, self.chained_requests)


def block_size(config) -> int:
    """Tokens of a drafter's block, the bonus token included, from its ``config.json``."""
    special = getattr(config, "dflash_config", None) or {}
    return special.get("block_size") or config.block_size
