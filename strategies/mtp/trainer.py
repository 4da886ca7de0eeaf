"""Training an MTP head on its own outputs, as many steps in a row as it will draft (DeepSeek-V3; EAGLE-3, arXiv 2503.01840)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from strategies.base import TargetView
from strategies.mtp.checkpoint import new_head, save_head
from strategies.mtp.head import HeadConfig
from strategies.training import Trainer, TrainingBatch, draw_anchors, leading_matches, windows


class MTPTrainer(Trainer):
    """Cross-entropy of every step's token, step j weighted decay^(j - 1)."""

    def __init__(
        self,
        target: TargetView,
        steps: int,
        decay: float,
        anchors: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        intermediate_size: int,
        rope_theta: float,
        rms_norm_eps: float,
    ) -> None:
        super().__init__()
        config = HeadConfig(
            hidden_size=target.hidden_size,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=intermediate_size,
            vocab_size=target.vocab_size,
            num_target_layers=target.num_layers,
            rms_norm_eps=rms_norm_eps,
            rope_theta=rope_theta,
            trained_steps=steps,
        )
        self.target, self.taps = target, (target.num_layers - 1,)
        self.steps, self.decay, self.anchors = steps, decay, anchors
        self.module = new_head(config).to(target.device)

    def loss(self, batch: TrainingBatch, noise: Tensor) -> Tensor:
        anchors, drawn = draw_anchors(batch, self.anchors, noise)
        following = windows(batch.tokens, batch.lengths, self.steps)
        targets = following.gather(1, anchors[..., None].expand(-1, -1, self.steps))
        total, weight = 0.0, 0.0
        for step, hidden in enumerate(self._unroll(batch)):
            # The chain of a bonus token at position b drafts its token j from the row that ends at b + j - 1.
            rows = (anchors + step - 1).clamp(0, hidden.shape[1] - 1)
            picked = hidden.gather(1, rows[..., None].expand(-1, -1, hidden.shape[-1]))
            wanted = targets[..., step]
            losses = self.token_losses(self.module.norm(picked).flatten(0, 1), self.target.head, wanted.clamp(min=0).flatten())
            counted = (drawn & (wanted >= 0)).flatten() * self.decay**step
            total, weight = total + (losses * counted).sum(), weight + counted.sum()
        return total / weight

    def accepted(self, batch: TrainingBatch) -> Tensor:
        following = windows(batch.tokens, batch.lengths, self.steps)
        width = batch.tokens.shape[1]
        drafted = []
        for step, hidden in enumerate(self._unroll(batch)):
            best = torch.stack([self.target.head(self.module.norm(h)).argmax(-1) for h in hidden])
            rows = (torch.arange(width, device=best.device) + step - 1).clamp(0, width - 1)
            drafted.append(best[:, rows])
        return leading_matches(torch.stack(drafted, dim=-1), following)

    def compile(self) -> None:
        super().compile()
        self.module.enter = torch.compile(self.module.enter, dynamic=False)
        self.module.leave = torch.compile(self.module.leave, dynamic=False)

    def save(self, folder: Path) -> None:
        save_head(self.module, folder)

    def _unroll(self, batch: TrainingBatch):
        """Hidden states ``[n, width, hidden]`` of step 1, 2, …: row q holds the token at q + 1 and drafts the one at q + 2.

        At step j, row q belongs to the chain whose first row is q - j + 1: it sees the true entries up to there, and the
        entries that the chain itself made at steps 2 … j, one on each diagonal.
        """
        n, width = batch.tokens.shape
        rows = torch.arange(width, device=batch.tokens.device)
        distance = rows[:, None] - rows
        rope = self.module.rope(rows.expand(n, -1), batch.features.dtype)
        embedding = self.target.embed(torch.cat([batch.tokens[:, 1:], batch.tokens[:, :1]], dim=1))
        hidden, keys, values, masks = batch.features, [], [], []
        for step in range(self.steps):
            if step:
                hidden = torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1)
            x, queries, new_keys, new_values = self.module.enter(embedding, hidden, rope)
            keys.append(new_keys)
            values.append(new_values)
            visible = [distance >= step] + [distance == step - i for i in range(1, step + 1)]
            if step:
                # The first rows have no whole chain; they must see something, and are never asked for.
                visible[0] = visible[0] | (rows[:, None] < step) & (distance == 0)
            masks = torch.cat(visible, dim=1).expand(n, -1, -1)
            hidden = self.module.leave(x, queries, torch.cat(keys, dim=2), torch.cat(values, dim=2), masks)
            yield hidden
