"""Which rows of a draft tree may see which: a row sees its ancestors and itself."""

from __future__ import annotations

import torch
from torch import Tensor


def ancestor_bits(parents: Tensor) -> Tensor:
    """``parents`` int64 ``[batch, rows]``, the root's -1, parents before children -> int64 ``[batch, rows, ceil(rows / 64)]``.

    Bit j of word w of row i is set when row 64 w + j lies on the path from the root to row i, ends included.
    """
    batch, rows = parents.shape
    words = -(-rows // 64)
    packed = bytearray()
    for row_parents in parents.tolist():
        bits: list[int] = []
        for row, parent in enumerate(row_parents):
            bits.append((bits[parent] if parent >= 0 else 0) | 1 << row)
        packed += b"".join(row_bits.to_bytes(8 * words, "little") for row_bits in bits)
    return torch.frombuffer(packed, dtype=torch.int64).view(batch, rows, words).to(parents.device)


def unpack_bits(bits: Tensor, rows: int) -> Tensor:
    """Words of ``ancestor_bits`` ``[batch, rows, words]`` -> bool ``[batch, rows, rows]``."""
    unpacked = (bits[..., None] >> torch.arange(64, device=bits.device)) & 1
    return unpacked.flatten(-2)[..., :rows].bool()


def ancestor_mask(parents: Tensor) -> Tensor:
    """``parents`` ``[batch, rows]``, the root's -1, parents before children -> bool ``[batch, rows, rows]``.

    Entry (i, j) is true when row j lies on the path from the root to row i, ends included.
    """
    return unpack_bits(ancestor_bits(parents), parents.shape[1])
