"""Drafting with an MTP head on the torch engine: a chain of k tokens, one head pass each."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.errors import UserError
from kernels import (
    LayerWeights,
    Rows,
    causal_mask,
    following_tokens,
    likeliest_with_logprob,
    norm_linear,
    on_gpu,
    over_cache,
    rotate_into,
    side_by_side,
)
from strategies.base import DraftTree, Proposer, TargetView
from strategies.mtp.head import MTPHead

LONGEST_CHAIN = 16


class MTPProposer(Proposer):
    """The head's cache has one entry a position p, made of the target's hidden state at p and the token at p + 1.

    The last committed position's next token is the bonus token, so its entry waits for ``propose``, whose first pass
    fills the entries of all newly committed rows and drafts at the same time. Entries of drafted tokens are dropped after
    the draft: committed positions always hold the target's own hidden states.
    """

    capturable = True

    def __init__(self, head: MTPHead, target: TargetView, k: int) -> None:
        if not isinstance(k, int) or not 1 <= k <= LONGEST_CHAIN:
            raise UserError(f"strategy.k={k} is not a chain length; give a whole number from 1 to {LONGEST_CHAIN}")
        self.head, self.target, self.k = head, target, k
        self._layer = LayerWeights(
            heads=head.config.num_attention_heads,
            attention_norm=head.input_layernorm,
            qkv=side_by_side(head.q_proj, head.k_proj, head.v_proj),
            q_norm=None,
            k_norm=None,
            out=head.o_proj,
            mlp_norm=head.post_attention_layernorm,
            gate_up=side_by_side(head.gate_proj, head.up_proj),
            down=head.down_proj,
        )
        self.taps = (target.num_layers - 1,)
        self.max_rows = self.longest = k + 1
        self._sizes: tuple[int, int] | None = None

    def reset(self, batch: int, capacity: int) -> None:
        self._rows = 0
        if self._sizes == (batch, capacity):
            return
        self._sizes = batch, capacity
        config, device = self.head.config, self.target.device
        shape = (2, batch, config.num_key_value_heads, capacity, config.head_dim)
        self._keys, self._values = torch.zeros(shape, dtype=self.target.dtype, device=device)
        self._requests = torch.arange(batch, device=device)
        # Committed rows whose entries wait for the bonus token, the first ``_counts`` of each request's.
        self._tokens = torch.zeros(batch, self.longest, dtype=torch.int64, device=device)
        self._hidden = torch.zeros(batch, self.longest, config.hidden_size, dtype=self.target.dtype, device=device)
        self._waiting = torch.zeros(2, batch, dtype=torch.int64, device=device)
        self._entries, self._counts = self._waiting
        self._places = torch.arange(capacity, device=device)
        self._causal = causal_mask(batch, self.longest, device)

    def commit(self, tokens: Tensor, features: Tensor, lengths: Tensor, kept: Tensor) -> None:
        if self._rows == 0:
            # The prompts' entries belong to prefill; all but the last have their next token already.
            if tokens.shape[1] > 1:
                self._read(tokens[:, 1:], features[:, :-1], lengths)
            last = kept - 1
            tokens, features = tokens[self._requests, last][:, None], features[self._requests, last][:, None]
            lengths, kept = lengths + last, torch.ones_like(kept)
        rows = tokens.shape[1]
        self._tokens[:, :rows] = tokens
        self._hidden[:, :rows] = features
        torch.stack([lengths, kept], out=self._waiting)
        # On a GPU all rounds have the same shapes; rows behind the counted ones are overwritten before anything sees them.
        self._rows = self.longest if on_gpu(tokens) else rows

    def propose(self, bonus: Tensor, lengths: Tensor) -> DraftTree:
        following, last = following_tokens(self._tokens[:, : self._rows], self._counts, bonus)
        hidden = self._pass(following, self._hidden[:, : self._rows], self._entries)
        hidden = hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[-1]))
        drafted, logprobs = [], []
        for step in range(self.k):
            best, logprob = likeliest_with_logprob(norm_linear(hidden[:, 0], self.head.norm, self.target.head))
            drafted.append(best)
            logprobs.append(logprob)
            if step + 1 < self.k:
                hidden = self._pass(best[:, None], hidden, lengths + step if step else lengths)
        return DraftTree.chain(bonus, torch.stack(drafted, dim=1), torch.stack(logprobs, dim=1))

    def _read(self, following: Tensor, hidden: Tensor, entries: Tensor) -> None:
        """Write entries behind ``entries`` ``[batch]`` for rows of ``hidden`` ``[batch, rows, hidden]`` and the tokens that follow."""
        x, rope = self._enter(following, hidden, entries)
        qkv = norm_linear(x, self._layer.attention_norm, self._layer.qkv)
        rotate_into(qkv, rope, self._layer.heads, None, None, self._keys, self._values, entries)

    def _pass(self, following: Tensor, hidden: Tensor, entries: Tensor) -> Tensor:
        """``_read``, and the rows' new hidden states."""
        x, rope = self._enter(following, hidden, entries)
        rows = following.shape[1]
        visible = Rows(entries, self._causal[:, :rows, :rows] if rows > 1 else None)
        return over_cache(self._layer, x, rope, self._keys, self._values, visible)

    def _enter(self, following: Tensor, hidden: Tensor, entries: Tensor):
        rows, positions = following.shape[1], entries[:, None]
        if rows > 1:
            positions = positions + self._places[:rows]
        return self.head.join(self.target.embed(following), hidden), self.head.rope(positions, hidden.dtype)
