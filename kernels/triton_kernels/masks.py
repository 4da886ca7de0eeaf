"""Ancestors as bits on the GPU: every row of a tree walks to the root."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_kernels.launch import dependent_launch, let_next_start, wait_for_last


def ancestor_bits(parents: Tensor) -> Tensor:
    """``kernels.masks.ancestor_bits``: int64 ``[batch, rows]`` -> int64 ``[batch, rows, ceil(rows / 64)]``."""
    batch, rows = parents.shape
    words = triton.cdiv(rows, 64)
    bits = torch.empty(batch, rows, words, dtype=torch.int64, device=parents.device)
    dependent = dependent_launch(parents.device)
    ancestor_bits_kernel[(batch, triton.cdiv(rows, 32))](
        parents.contiguous(), bits, rows, words, ROWS=32, WORDS=triton.next_power_of_2(words),
        DEPENDENT=dependent, num_warps=1, launch_pdl=dependent,
    )  # fmt: skip
    return bits


@triton.jit
def ancestor_bits_kernel(
    parents_ptr, bits_ptr, rows, words, ROWS: tl.constexpr, WORDS: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    let_next_start(DEPENDENT)
    wait_for_last(DEPENDENT)
    request = tl.program_id(0).to(tl.int64)
    parents_ptr += request * rows
    bits_ptr += request * rows * words
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    word = tl.arange(0, WORDS)
    bits = tl.zeros((ROWS, WORDS), tl.int64)
    ancestor = tl.where(row < rows, row, -1)
    while tl.max(ancestor, 0) >= 0:
        here = (ancestor[:, None] >> 6) == word[None, :]
        bits = tl.where(here, bits | (tl.full((), 1, tl.int64) << (ancestor & 63)[:, None].to(tl.int64)), bits)
        parent = tl.load(parents_ptr + ancestor, mask=ancestor >= 0, other=-1).to(tl.int32)
        ancestor = tl.where(parent < ancestor, parent, -1)  # parents come first: this ends, whatever was passed
    places = row[:, None] * words + word[None, :]
    tl.store(bits_ptr + places, bits, mask=(row < rows)[:, None] & (word < words)[None, :])
