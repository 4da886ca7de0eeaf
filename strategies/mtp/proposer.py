"""Drafting with an MTP head on the torch engine: a chain of k tokens, one head pass each."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.errors import UserError
from strategies.base import DraftTree, Proposer, TargetView
from strategies.mtp.head import MTPHead

LONGEST_CHAIN = 16


class MTPProposer(Proposer):
    """The head's cache has one entry a position p, made of the target's hidden state at p and the token at p + 1.

    The last committed position's next token is the bonus token, so its entry waits for ``propose``, whose first pass
    fills the entries of all newly committed rows and drafts at the same time. Entries of drafted tokens are dropped after
    the draft: committed positions always hold the target's own hidden states.
    """

    def __init__(self, head: MTPHead, target: TargetView, k: int) -> None:
        if not isinstance(k, int) or not 1 <= k <= LONGEST_CHAIN:
            raise UserError(f"strategy.k={k} is not a chain length; give a whole number from 1 to {LONGEST_CHAIN}")
        self.head, self.target, self.k = head, target, k
        self.taps = (target.num_layers - 1,)
        self.max_rows = k + 1

    def reset(self, batch: int, capacity: int) -> None:
        config = self.head.config
        shape = (batch, config.num_key_value_heads, capacity, config.head_dim)
        options = {"dtype": self.target.dtype, "device": self.target.device}
        self._keys, self._values = torch.empty(shape, **options), torch.empty(shape, **options)
        self._entries = 0
        self._tokens = torch.empty(batch, 0, dtype=torch.long, device=self.target.device)
        self._hidden = torch.empty(batch, 0, config.hidden_size, **options)

    def commit(self, tokens: Tensor, features: Tensor) -> None:
        self._tokens = torch.cat([self._tokens, tokens], dim=1)
        self._hidden = torch.cat([self._hidden, features], dim=1)
        if self._entries == 0 and tokens.shape[1] > 1:
            # The prompt's entries belong to prefill; all but the last have their next token already.
            self._pass(self._tokens[:, 1:], self._hidden[:, :-1])
            self._tokens, self._hidden = self._tokens[:, -1:], self._hidden[:, -1:]

    def propose(self, bonus: Tensor, max_depth: int) -> DraftTree:
        steps = min(self.k, max_depth)
        if steps == 0:
            return DraftTree.root(bonus)
        hidden = self._pass(torch.cat([self._tokens[:, 1:], bonus[:, None]], dim=1), self._hidden)[:, -1:]
        self._tokens, self._hidden = self._tokens[:, :0], self._hidden[:, :0]
        committed_entries = self._entries
        drafted, logprobs = [], []
        for step in range(steps):
            best = self.target.head(self.head.norm(hidden))[:, 0].float().log_softmax(dim=-1).max(dim=-1)
            drafted.append(best.indices)
            logprobs.append(best.values)
            if step + 1 < steps:
                hidden = self._pass(best.indices[:, None], hidden)
        self._entries = committed_entries
        return DraftTree.chain(bonus, torch.stack(drafted, dim=1), torch.stack(logprobs, dim=1))

    def _pass(self, next_tokens: Tensor, hidden: Tensor) -> Tensor:
        """Append entries for rows of ``hidden`` ``[batch, rows, hidden]`` and their next tokens; their new hidden states."""
        rows = next_tokens.shape[1]
        start, end = self._entries, self._entries + rows
        positions = torch.arange(start, end, device=hidden.device).expand_as(next_tokens)
        x, queries, keys, values = self.head.enter(self.target.embed(next_tokens), hidden, self.head.rope(positions, hidden.dtype))
        self._keys[:, :, start:end] = keys
        self._values[:, :, start:end] = values
        self._entries = end
        columns = torch.arange(end, device=hidden.device)
        visible = columns <= positions[:, :, None] if rows > 1 else None
        return self.head.leave(x, queries, self._keys[:, :, :end], self._values[:, :, :end], visible)
