"""How a product is cut into programs: measured for shapes that were measured, by a rule of thumb for all others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

MEASURED = Path(__file__).with_name("tiles.json")
MOST_ROWS = 128
STREAMED = (1, 2, 4)  # rows of the kernel that multiplies every weight with all rows in registers
SHARED_BYTES = 228 * 1024  # of a multiprocessor of an H200; each program takes 1 KiB more than it uses
PROGRAMS = 132  # multiprocessors of an H200
SMALL = 1 << 21  # weights of a matrix that may be read again for other rows: what counts is that many programs share it


@dataclass(frozen=True)
class Tile:
    """One program's share: ``block_m`` rows x ``block_n`` outputs, ``block_k`` inputs a step; ``split`` programs share the
    inputs of an output; weights of the first ``early`` inputs (0, or a power of two from 16 on) are loaded before the kernel before has ended."""

    block_m: int
    block_n: int
    block_k: int
    split: int = 1
    warps: int = 4
    stages: int = 4
    early: int = 0

    @property
    def streams(self) -> bool:
        """Whether weights go through registers, for 1, 2 or 4 rows of ``block_m``; shared memory and matrix instructions otherwise."""
        return self.block_m in STREAMED


def tile(rows: int, outputs: int, inputs: int, gated: bool, dtype: torch.dtype) -> Tile:
    """The tile for up to ``MOST_ROWS`` ``rows``; ``outputs`` counts a gate and its up together as one.

    In fp32 it depends on the shape of the matrix alone, and sums run in the order of the inputs: a row's result is the same,
    bit for bit, in whatever company it comes.
    """
    if dtype == torch.float32:
        return Tile(16, 32, 32, stages=2)
    for most in (rows, 16) if 1 < rows < 16 else (rows,):  # fewer rows fit into a tile of 16, too
        if found := measured().get(key(most, outputs, inputs, gated)):
            return found
    return rule_of_thumb(rows, outputs, inputs, gated)


def row_class(rows: int) -> int:
    """Rows that are computed: ``rows`` rounded up to 1, 2, 4, 16, 32, 64 or 128."""
    return next(most for most in (*STREAMED, 16, 32, 64, MOST_ROWS) if rows <= most)


def key(rows: int, outputs: int, inputs: int, gated: bool) -> str:
    """The name of a shape in the file of measured tiles (bf16)."""
    return f"{row_class(rows)} x {outputs} x {inputs}{' gated' if gated else ''}"


@cache
def measured() -> dict[str, Tile]:
    """Tiles by ``key``; what is put into this dict is what products use from then on."""
    return {name: Tile(**found["tile"]) for name, found in json.loads(MEASURED.read_text())["tiles"].items()}


def may_stream(rows: int, inputs: int) -> bool:
    """Whether there is a kernel that multiplies weights with so many rows in registers; it reads 8 inputs at once."""
    return row_class(rows) in STREAMED and inputs % 8 == 0


def rule_of_thumb(rows: int, outputs: int, inputs: int, gated: bool) -> Tile:
    """Wide enough that the rows, which every program reads, cost little beside the weights; enough programs for the device.
    Four rows of a large matrix cost the registers more than the matrix instruction: these it computes as sixteen."""
    block_m = row_class(rows)
    if may_stream(rows, inputs) and (block_m <= 2 or outputs * inputs <= SMALL):
        return _streamed(block_m, outputs, inputs, gated)
    block_m = max(16, block_m)
    block_n = 128 if block_m >= 64 and outputs >= 2048 and not gated else 64
    block_k = 128 if block_m <= 32 and inputs >= 2048 and not gated else 64
    programs, steps = -(-outputs // block_n), -(-inputs // block_k)
    while outputs * inputs <= SMALL and block_m > 16 and 2 * programs <= PROGRAMS:
        block_m, programs = block_m // 2, 2 * programs
    most = 2 * PROGRAMS if block_m <= 32 else PROGRAMS
    split = 1
    while 2 * programs * split <= most and steps >= 16 * split and steps % (2 * split) == 0:
        split *= 2
    stages = most_stages(block_m, block_n, block_k, gated, at_once=2 if programs * split > PROGRAMS else 1)
    return Tile(block_m, block_n, block_k, split, warps=8 if block_m == 128 else 4, stages=min(6, stages))


def most_stages(block_m: int, block_n: int, block_k: int, gated: bool, at_once: int, early: int = 0) -> int:
    """Blocks of operands in bf16 that a program may have under way when a multiprocessor holds ``at_once`` programs."""
    an_input = 2 * (block_n * (2 if gated else 1) + block_m)
    normed = 2 * block_k * block_m
    return (SHARED_BYTES // at_once - 1536 - normed - early * an_input) // (block_k * an_input)


def _streamed(block_m: int, outputs: int, inputs: int, gated: bool) -> Tile:
    block_n = 4 if outputs >= 4 * PROGRAMS and block_m < 4 else 2
    pieces = 1 << max(5, min(8, (inputs // 8 - 1).bit_length()))
    return Tile(block_m, block_n // (2 if gated and block_n > 2 else 1), 8 * pieces, stages=1)
