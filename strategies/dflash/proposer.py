"""Drafting with DFlash on the torch engine: one drafter pass a round, slot logits for a chain or a tree."""

from __future__ import annotations

import torch
from torch import Tensor

from strategies.base import DraftTree, Proposer, TargetView
from strategies.dflash.drafter import DFlashDrafter


class BlockProposer(Proposer):
    """What linear DFlash and DDTree share: the drafter's context cache and the pass that fills a block.

    The context cache holds keys and values of committed positions only. A block's own keys and values never enter it,
    so there is nothing to crop after a draft.
    """

    def __init__(self, drafter: DFlashDrafter, target: TargetView) -> None:
        self.drafter, self.target = drafter, target
        self.taps = drafter.config.target_layer_ids
        self.slots = drafter.config.block_size - 1

    def reset(self, batch: int, capacity: int) -> None:
        config = self.drafter.config
        shape = (batch, config.num_key_value_heads, capacity, config.head_dim)
        options = {"dtype": self.target.dtype, "device": self.target.device}
        self._cache = [(torch.empty(shape, **options), torch.empty(shape, **options)) for _ in self.drafter.layers]
        self._length = 0

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        rows = tokens.shape[1]
        end = self._length + rows
        positions = torch.arange(self._length, end, device=tokens.device).expand_as(tokens)
        for (keys, values), (new_keys, new_values) in zip(self._cache, self.drafter.context(features, positions), strict=True):
            keys[:, :, self._length : end] = new_keys
            values[:, :, self._length : end] = new_values
        self._length = end

    def slot_logits(self, bonus: Tensor, slots: int) -> Tensor:
        """Logits ``[batch, slots, vocab]`` of the tokens that follow ``bonus`` ``[batch]``; the block is always whole."""
        config, start = self.drafter.config, self._length
        block = bonus.new_full((len(bonus), config.block_size), config.mask_token_id)
        block[:, 0] = bonus
        positions = torch.arange(start, start + config.block_size, device=bonus.device).expand_as(block)
        context = [(keys[:, :, :start], values[:, :, :start]) for keys, values in self._cache]
        visible = [self._visible(layer, positions) for layer in range(config.num_hidden_layers)]
        hidden = self.drafter(self.target.embed(block), positions, context, visible)
        # A slice of three dimensions would send torch's CPU product down a road that copies the head's weight.
        logits = self.target.head(hidden[:, 1 : slots + 1].flatten(0, 1)).unflatten(0, (len(bonus), slots))
        self.drafting_done()
        return logits

    def _visible(self, layer: int, positions: Tensor) -> Tensor | None:
        """Full layers see everything; sliding ones a window, causal unless the checkpoint says otherwise."""
        config = self.drafter.config
        if not config.sliding(layer):
            return None
        columns = torch.arange(self._length + config.block_size, device=positions.device)
        distance = positions[:, :, None] - columns
        seen = distance < config.sliding_window
        return seen & (distance >= 0) if config.sliding_is_causal else seen & (distance > -config.sliding_window)


class ChainProposer(BlockProposer):
    """Linear DFlash: the arg-max of every slot, one after another."""

    def __init__(self, drafter: DFlashDrafter, target: TargetView) -> None:
        super().__init__(drafter, target)
        self.max_rows = drafter.config.block_size

    def propose(self, bonus: Tensor, max_depth: int) -> DraftTree:
        slots = min(self.slots, max_depth)
        if slots == 0:
            return DraftTree.root(bonus)
        best = self.slot_logits(bonus, slots).float().log_softmax(dim=-1).max(dim=-1)
        return DraftTree.chain(bonus, best.indices, best.values)
