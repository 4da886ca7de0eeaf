"""vLLM's DFlash drafter with a block of its own length, whose slots' logits are kept for the trees."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from vllm.v1.spec_decode.dflash import DFlashProposer

from strategies.ddtree.vllm_plugin import full_graphs
from strategies.ddtree.vllm_plugin.replayed import ReplayedStep
from strategies.ddtree.vllm_plugin.versions import speculative_copy


class SlotProposer(DFlashProposer):
    """Drafts ``slots`` tokens a request, however many nodes a tree may have. ``slot_logits`` ``[requests, slots, vocab]``."""

    def __init__(self, vllm_config, device: torch.device, runner, slots: int) -> None:
        super().__init__(speculative_copy(vllm_config, slots), device, runner)
        if full_graphs(vllm_config):
            # Captured sizes are then multiples of a tree's rows, to which vLLM pads the rows of blocks: 0.20 has room for these alone.
            spare = vllm_config.speculative_config.num_speculative_tokens
            self.positions, self._slot_mapping_buffer = (F.pad(rows, (0, spare)) for rows in (self.positions, self._slot_mapping_buffer))
        self.slots = slots
        self.slot_logits: Tensor | None = None
        self.replayed: ReplayedStep | None = None  # the step, where it grows the trees itself

    def propose(self, *args, **kwargs) -> Tensor:
        if "num_speculative_tokens" in kwargs:
            kwargs["num_speculative_tokens"] = self.slots
        return super().propose(*args, **kwargs)

    def prepare_next_token_ids_padded(self, *told) -> tuple[Tensor, Tensor]:
        """Each request's last token and how many it got, int32, which vLLM would find among the sampled ones."""
        return super().prepare_next_token_ids_padded(*told) if self.replayed is None else (self.replayed.bonus, self.replayed.given)

    def prepare_inputs_padded(self, common, drafted, given: Tensor):
        """Metadata of the drafter's context, rows to sample from (DFlash has its own) and how many rows of each request are none."""
        step = self.replayed
        if step is None or common.num_actual_tokens != step.order.numel() or common.num_reqs != len(step.names):
            return super().prepare_inputs_padded(common, drafted, given)
        return common, None, step.rejected

    def _greedy_sample(self, hidden_states: Tensor) -> Tensor:
        if self.replayed is not None:
            return self.replayed.grow(hidden_states)
        self.slot_logits = self.logits_of_slots(hidden_states)
        return self.slot_logits.argmax(dim=-1).flatten()

    def logits_of_slots(self, hidden_states: Tensor) -> Tensor:
        """``[requests * slots, hidden]`` -> ``[requests, slots, vocab]``."""
        logits = self.model.compute_logits(hidden_states)
        return logits.view(-1, self.slots, logits.shape[-1])


def block_size(config) -> int:
    """Tokens of a drafter's block, the bonus token included, from its ``config.json``."""
    special = getattr(config, "dflash_config", None) or {}
    return special.get("block_size") or config.block_size
