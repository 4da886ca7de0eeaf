"""How many rows of a draft tree to verify: the size that promises the most tokens a second (CaDDTree, arXiv 2606.01813)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.device import on_gpu


def pick_size(logprobs: Tensor, lengths: Tensor, rows: Tensor, contexts: Tensor, round_s: Tensor, picked: Tensor) -> None:
    """Write into ``picked`` (int64 ``[1]``) which of the sizes ``rows`` to cut the trees of a batch to. Nothing is read back.

    ``logprobs`` ``[batch, most]``: of the prefix that ends in a row, the best rows first, the root's 0. A tree cut to n rows is
    expected to give as many tokens as the probabilities of its rows sum up to (of all, where n is more than there are); the pick
    maximises that sum over the batch / the round's cost behind the longest of ``lengths`` (int64 ``[batch]``). ``round_s`` (fp64
    ``[contexts, sizes]``, seconds) is what a round costs behind ``contexts`` (fp64, ascending), linear between them and outside
    as at the nearest. ``rows`` is int64 ``[sizes]``.
    """
    if on_gpu(logprobs):
        from kernels.triton_kernels import size as kernel

        return kernel.pick_size(logprobs, lengths, rows, contexts, round_s, picked)
    tokens = logprobs.double().exp().cumsum(dim=1).sum(dim=0)
    tokens = tokens[(rows - 1).clamp(max=logprobs.shape[1] - 1)]
    picked.copy_((tokens / _cost(lengths, contexts, round_s)).argmax())


def _cost(lengths: Tensor, contexts: Tensor, round_s: Tensor) -> Tensor:
    """``[sizes]``, in seconds."""
    if len(contexts) == 1:
        return round_s[0]
    longest = lengths.max().double().clamp(contexts[0], contexts[-1])[None]
    above = torch.searchsorted(contexts, longest).clamp(min=1)
    low, high = contexts[above - 1], contexts[above]
    return torch.lerp(round_s[above - 1], round_s[above], ((longest - low) / (high - low))[:, None])[0]
