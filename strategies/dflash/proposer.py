"""Drafting with DFlash on the torch engine: one drafter pass a round, slot logits for a chain or a tree."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import Rows, causal_mask, likeliest_with_logprob
from strategies.base import DraftTree, Proposer, TargetView
from strategies.dflash.drafter import DFlashDrafter
from strategies.dflash.fused import FusedDrafter


class BlockProposer(Proposer):
    """What linear DFlash and DDTree share: the drafter's context cache and the pass that fills a block.

    The context cache holds keys and values of committed positions. A block's own lie behind them for the length of its
    pass; the next committed rows take their places, so there is nothing to crop after a draft.
    """

    capturable = True

    def __init__(self, drafter: DFlashDrafter, target: TargetView) -> None:
        self.drafter, self._fused, self.target = drafter, FusedDrafter(drafter), target
        self.taps = drafter.config.target_layer_ids
        self.slots = drafter.config.block_size - 1
        self._sizes: tuple[int, int] | None = None

    def reset(self, batch: int, capacity: int) -> None:
        if self._sizes == (batch, capacity):
            return
        self._sizes = batch, capacity
        config, device = self.drafter.config, self.target.device
        shape = (config.num_hidden_layers, 2, batch, config.num_key_value_heads, capacity, config.head_dim)
        self._cache = torch.zeros(shape, dtype=self.target.dtype, device=device)
        self._block = torch.full((batch, config.block_size), config.mask_token_id, device=device)
        self._offsets = torch.arange(config.block_size, device=device)
        causal = causal_mask(batch, config.block_size, device)
        self._masks = [causal if config.sliding(layer) and config.sliding_is_causal else None for layer in range(len(self._cache))]

    def commit(self, tokens: Tensor, features: Tensor, lengths: Tensor, kept: Tensor) -> None:
        self._fused.read(features, lengths, self._cache)

    def slot_logits(self, bonus: Tensor, lengths: Tensor) -> Tensor:
        """Logits ``[batch, slots, vocab]`` of the tokens that follow ``bonus`` ``[batch]``."""
        config = self.drafter.config
        self._block[:, 0] = bonus
        positions = lengths[:, None] + self._offsets
        visible = [
            Rows(lengths, mask, config.sliding_window if config.sliding(layer) else None) for layer, mask in enumerate(self._masks)
        ]
        hidden = self._fused(self.target.embed(self._block), positions, self._cache, visible)
        # A slice of three dimensions would send torch's CPU product down a road that copies the head's weight.
        logits = self._fused.logits(hidden[:, 1:].flatten(0, 1), self.target.head).unflatten(0, (len(bonus), self.slots))
        self.drafting_done()
        return logits


class ChainProposer(BlockProposer):
    """Linear DFlash: the arg-max of every slot, one after another."""

    def __init__(self, drafter: DFlashDrafter, target: TargetView) -> None:
        super().__init__(drafter, target)
        self.max_rows = self.longest = drafter.config.block_size

    def propose(self, bonus: Tensor, lengths: Tensor) -> DraftTree:
        return DraftTree.chain(bonus, *likeliest_with_logprob(self.slot_logits(bonus, lengths)))
