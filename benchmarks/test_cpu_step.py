"""Time of one target pass on a CPU and of its parts, by pytest-benchmark: ``python -m pytest benchmarks/test_cpu_step.py``.

Random weights in SmolLM2-135M's sizes, bf16, 100 committed positions. A pass is one row (autoregressive), or a tree of 17, 33 or 64.
Parts go through all layers' weights in turn, so that none stays in a cache: their time over the number of layers is one layer's.
"""

from __future__ import annotations

import pytest
import torch

import harness  # noqa: F401  before anything starts threads
from benchmarks.round_cost import SHAPES, RandomTensors
from harness.cache_folder import cache_folder
from harness.models.dense import build
from kernels import Rows, greedy_rows, pack, row_mask
from kernels.native import layers as native
from kernels.packed import packs

CONTEXT = 100
ROWS = [1, 17, 33, 64]
DTYPE = torch.bfloat16
pytestmark = pytest.mark.skipif(not packs(torch.empty(0, dtype=DTYPE)), reason="an x86 CPU that multiplies bf16")


@pytest.fixture(scope="module", params=["plain", "oneDNN", "C"])
def model(request):
    """Plain torch, its weights in oneDNN's order, and the C kernels."""
    config, _ = SHAPES["smollm2-135m"]
    made = build(config, RandomTensors(config, DTYPE, torch.device("cpu")), DTYPE, "cpu")
    reason = native.use(cache_folder() / "kernels" if request.param == "C" else None)
    if request.param == "C" and reason:
        pytest.skip(reason)
    if request.param != "plain":
        pack(made)
    return made


@pytest.mark.parametrize("rows", ROWS)
@torch.inference_mode()
def test_step(benchmark, model, rows):
    """Embedding to arg-max, as a round's verification."""
    cache = model.new_cache(1, CONTEXT + rows)
    prompt = torch.randint(model.config.vocab_size, (1, CONTEXT), generator=torch.Generator().manual_seed(0))
    model(prompt, torch.arange(CONTEXT)[None], cache)
    cache.lengths += CONTEXT
    parents = torch.tensor([[(row - 1) // 2 if row else -1 for row in range(rows)]])

    def step():
        seen = Rows(cache.lengths, row_mask(parents) if rows > 1 else None)
        hidden, _ = model(prompt[:, :rows], torch.full((1, rows), CONTEXT), cache, seen)
        return greedy_rows(model.logits(hidden))

    assert benchmark(inferring(step)).shape == (1, rows)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["qkv", "out", "gate_up", "down"])
def test_linear(benchmark, model, name, rows):
    x = torch.randn(1, rows, getattr(model.layers[0], name).in_features).to(DTYPE)
    benchmark(inferring(lambda: [getattr(layer, name)(x) for layer in model.layers]))


@pytest.mark.parametrize("rows", ROWS)
def test_head(benchmark, model, rows):
    x = torch.randn(1, rows, model.config.hidden_size).to(DTYPE)
    benchmark(inferring(lambda: model.head(x)))


@pytest.mark.parametrize("rows", ROWS)
def test_norm(benchmark, model, rows):
    x = torch.randn(1, rows, model.config.hidden_size).to(DTYPE)
    benchmark(inferring(lambda: [layer.mlp_norm(x) for layer in model.layers]))


def inferring(function):
    """pytest-benchmark calls it outside of the test's own inference mode."""
    return torch.inference_mode()(function)
