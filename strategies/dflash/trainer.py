"""Training a DFlash drafter: many random blocks a sequence in one pass (arXiv 2602.06036, section 3.3)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from strategies.base import TargetView
from strategies.dflash.checkpoint import new_drafter, save_drafter
from strategies.dflash.config import DrafterConfig, check_fits, spread_taps
from strategies.training import Trainer, TrainingBatch, draw_anchors, leading_matches, windows

EVALUATED_AT_ONCE = 4


class DFlashTrainer(Trainer):
    """Cross-entropy of slots k >= 1, weighted exp(-(k - 1) / gamma): early slots decide whether later ones count."""

    def __init__(
        self,
        target: TargetView,
        layers: int,
        block_size: int,
        taps: int,
        mask_token_id: int,
        gamma: float,
        anchors: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        intermediate_size: int,
        rope_theta: float,
    ) -> None:
        super().__init__()
        config = DrafterConfig(
            hidden_size=target.hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=intermediate_size,
            vocab_size=target.vocab_size,
            block_size=block_size,
            mask_token_id=mask_token_id,
            target_layer_ids=spread_taps(target.num_layers, taps),
            num_target_layers=target.num_layers,
            rope_theta=rope_theta,
            max_position_embeddings=target.context_length,
        )
        check_fits(config, target, "to be trained")
        self.target, self.taps, self.anchors = target, config.target_layer_ids, anchors
        self.module = new_drafter(config).to(target.device)
        slots = torch.arange(block_size - 1, device=target.device)
        self.slot_weights = torch.exp(-slots / gamma)

    def loss(self, batch: TrainingBatch, noise: Tensor) -> Tensor:
        anchors, drawn = draw_anchors(batch, self.anchors, noise)
        hidden = self._blocks(batch, anchors)
        slots = hidden.shape[2]
        targets = windows(batch.tokens, batch.lengths, slots).gather(1, anchors[..., None].expand(-1, -1, slots))
        weights = self.slot_weights * drawn[..., None] * (targets >= 0)
        losses = self.token_losses(hidden.flatten(0, 2), self.target.head, targets.clamp(min=0).flatten())
        return (losses * weights.flatten()).sum() / weights.sum()

    def accepted(self, batch: TrainingBatch) -> Tensor:
        n, width = batch.tokens.shape
        following = windows(batch.tokens, batch.lengths, self.module.config.block_size - 1)
        counts = []
        for i in range(0, n, EVALUATED_AT_ONCE):
            part = TrainingBatch(*(t[i : i + EVALUATED_AT_ONCE] for t in (batch.tokens, batch.starts, batch.lengths, batch.features)))
            anchors = torch.arange(width, device=part.tokens.device).expand(len(part.tokens), -1)
            drafted = torch.stack([self.target.head(h).argmax(-1) for h in self._blocks(part, anchors)])
            counts.append(leading_matches(drafted, following[i : i + EVALUATED_AT_ONCE]))
        return torch.cat(counts)

    def compile(self) -> None:
        super().compile()
        for layer in self.module.layers:
            layer.compile(dynamic=False)

    def save(self, folder: Path) -> None:
        save_drafter(self.module, folder)

    def _blocks(self, batch: TrainingBatch, anchors: Tensor) -> Tensor:
        """Hidden states of the slots k >= 1 of the blocks that begin at ``anchors`` ``[n, blocks]``.

        One mask holds all blocks: a block sees the context strictly before its anchor, and itself, both ways.
        Returns ``[n, blocks, block_size - 1, hidden]``.
        """
        config = self.module.config
        n, width = batch.tokens.shape
        blocks, size = anchors.shape[1], config.block_size
        columns = torch.arange(width, device=anchors.device)
        context = self.module.context(batch.features, columns.expand(n, -1))

        tokens = anchors.new_full((n, blocks, size), config.mask_token_id)
        tokens[..., 0] = batch.tokens.gather(1, anchors)
        offsets = torch.arange(size, device=anchors.device)
        positions = (anchors[..., None] + offsets).flatten(1)
        past = (columns < anchors[..., None])[:, :, None].expand(-1, -1, size, -1).flatten(1, 2)
        block_of = torch.arange(blocks * size, device=anchors.device) // size
        own = (block_of[:, None] == block_of).expand(n, -1, -1)
        visible = torch.cat([past, own], dim=-1)
        hidden = self.module(self.target.embed(tokens.flatten(1)), positions, context, [visible] * config.num_hidden_layers)
        return hidden.unflatten(1, (blocks, size))[:, :, 1:]
