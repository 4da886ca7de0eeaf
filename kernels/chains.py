"""Chains of drafted tokens: how one becomes a tree's columns, and which tokens follow the committed ones."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.device import on_gpu


def chain_columns(bonus: Tensor, drafted: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and prefix log-probabilities ``[batch, 1 + k]`` of chains that begin with ``bonus`` ``[batch]``, whose log-probability
    is 0, and go on with ``drafted`` ``[batch, k]`` (int64), of these ``logprobs`` (fp32)."""
    if on_gpu(bonus):
        from kernels.triton_kernels import chains as kernel

        return kernel.chain_columns(bonus, drafted, logprobs)
    tokens = torch.cat([bonus[:, None], drafted], dim=1)
    return tokens, torch.cat([logprobs.new_zeros(len(bonus), 1), logprobs.cumsum(dim=1)], dim=1)


def following_tokens(tokens: Tensor, counts: Tensor, bonus: Tensor) -> tuple[Tensor, Tensor]:
    """Of each of ``tokens`` ``[batch, rows]`` the next one, ``[batch, rows]``, and the last row that counts, ``[batch]``; int64.

    Of request b the first ``counts[b]`` rows count, at least one is taken to; behind the last of them comes ``bonus[b]``, and what
    follows that means nothing.
    """
    if on_gpu(tokens):
        from kernels.triton_kernels import chains as kernel

        return kernel.following_tokens(tokens, counts, bonus)
    last = (counts - 1).clamp(min=0)
    following = torch.cat([tokens[:, 1:], bonus[:, None]], dim=1)
    return following.scatter_(1, last[:, None], bonus[:, None]), last
