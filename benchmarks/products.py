"""The products of a target pass: their sizes, random operands, what they must move through memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from benchmarks.graph_time import copies_for
from harness.models.config import ModelConfig

EPS = 1e-6


@dataclass(frozen=True)
class Product:
    """``outputs`` of ``inputs`` by one matrix; ``kind`` "norm" and "head" (norm before it), "add" (residual after it) or "gate"
    (norm, then twice as many rows of the matrix, gate and up). Of several rows the products within and between layers hand on
    what the next norm needs, as in a round (one that streams its rows neither makes nor takes it); the head's do without."""

    outputs: int
    inputs: int
    kind: str

    @property
    def gated(self) -> bool:
        return self.kind == "gate"

    @property
    def matrix(self) -> tuple[int, int]:
        return self.outputs * (2 if self.gated else 1), self.inputs

    def nbytes(self, rows: int, itemsize: int) -> int:
        """Each operand read once, the result written once."""
        return itemsize * (self.matrix[0] * self.inputs + rows * (self.inputs + self.outputs * (2 if self.kind == "add" else 1)))

    def operands(self, rows: int, dtype: torch.dtype, device) -> dict[str, Any]:
        """All but the matrix."""
        made: dict[str, Any] = {"x": torch.randn(rows, self.inputs, device=device).to(dtype)}
        if self.kind == "add":
            made["residual"] = torch.randn(rows, self.outputs, device=device).to(dtype)
            return made if rows == 1 else made | {"following": torch.rand(self.outputs, device=device).to(dtype) + 0.5}
        made |= {"norm": torch.rand(self.inputs, device=device).to(dtype) + 0.5, "eps": EPS, "gated": self.gated}
        if rows > 1 and self.kind != "head":
            made["scaled"] = handed_on(made["x"], made["norm"])
        return made

    def matrices(self, dtype: torch.dtype, device) -> list[Tensor]:
        """As many as keep each other out of a GPU's L2; one on a CPU."""
        sizes = *self.matrix, dtype.itemsize
        copies = copies_for(sizes[0] * sizes[1] * sizes[2]) if torch.device(device).type == "cuda" else 1
        made = torch.randn(copies, *self.matrix, dtype=dtype, device=device) * self.inputs**-0.5
        return list(made)

    def reference(self, x: Tensor, weight: Tensor, norm=None, eps=0.0, gated=False, residual=None, **_) -> Tensor:
        """In the precision of its operands, by torch's own kernels."""
        if norm is not None:
            x = torch.nn.functional.rms_norm(x, (self.inputs,), norm, eps)
        product = x @ weight.T
        if gated:
            gate, up = product.chunk(2, dim=-1)
            return torch.nn.functional.silu(gate) * up
        return product if residual is None else residual + product


def handed_on(x: Tensor, norm: Tensor, width: int = 64) -> tuple[Tensor, Tensor]:
    """What the product before leaves for a norm: x times its weight, and sums of squares of ``width`` columns each."""
    squares = x.float().square().unflatten(-1, (-1, width)).sum(dim=-1)
    return (x.float() * norm.float()).to(x.dtype), squares.T.contiguous()


def products(config: ModelConfig) -> dict[str, Product]:
    """Those of a layer, in their order, and the head's."""
    attended, hidden = config.num_heads * config.head_dim, config.hidden_size
    return {
        "qkv": Product(attended + 2 * config.num_kv_heads * config.head_dim, hidden, "norm"),
        "out": Product(hidden, attended, "add"),
        "gate_up": Product(config.intermediate_size, hidden, "gate"),
        "down": Product(hidden, config.intermediate_size, "add"),
        "head": Product(config.vocab_size, hidden, "head"),
    }


def in_turn(function: Callable[..., Tensor], matrices: list[Tensor], **operands) -> Callable[[], Tensor]:
    """``function`` of the operands and, from call to call, the next of the matrices."""
    following = cycle(matrices)
    return lambda: function(weight=next(following), **operands)
