"""Times of the parts of a target pass over few rows, by pytest-benchmark.

    python -m pytest benchmarks/test_forward_kernels.py --benchmark-json=FILE

On a GPU a part is captured in one CUDA graph, once for every matrix (or cache) of a set that its L2 does not hold, and the graph
replayed: the host's launches are not in the figure, and nothing is warm that is not warm in a pass. ``extra_info`` has
``device_us``, the median time of one call between events of the GPU [µs]; ``moved_bytes``, each operand read once and the result
written once; ``floor_us``, the time in which this GPU copies as many bytes; ``share_of_floor``, floor over time. Attention over
many rows is not bound by memory alone: ``flops`` counts its two products. Statistics of pytest-benchmark are of a whole replay.
Without a GPU the references run, at sizes that show that this file works and nothing else.
"""

from __future__ import annotations

from functools import cache
from itertools import cycle

import pytest
import torch

import harness  # noqa: F401  before anything starts threads
from benchmarks.graph_time import REPLAYS, captured, copies_for, replay_s
from benchmarks.products import in_turn, products
from benchmarks.round_cost import SHAPES
from harness.engines.torch.bytes_moved import copy_bytes_per_s
from kernels import Rows, attention, row_mask
from kernels.layers import rotate_into

pytest.importorskip("pytest_benchmark")

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
MODELS, ROWS, CONTEXTS = (("qwen3-8b", "smollm2-135m"), (1, 16, 64, 128), (1024, 8192)) if CUDA else (("tiny",), (1, 5), (40,))
DTYPE = torch.bfloat16 if CUDA else torch.float32
copied_bytes_per_s = cache(copy_bytes_per_s)


def measure(benchmark, function, calls: int, moved_bytes: int, **more) -> None:
    """``calls`` calls of ``function``; ``moved_bytes`` by one."""
    function = torch.inference_mode()(function)
    benchmark.extra_info.update(moved_bytes=moved_bytes, dtype=str(DTYPE), **more)
    if not CUDA:
        benchmark.pedantic(function, rounds=3, warmup_rounds=1)
        return
    graph = captured(function, calls)
    seconds, floor = replay_s(graph) / calls, moved_bytes / copied_bytes_per_s(torch.device(DEVICE))
    benchmark.extra_info.update(
        device=torch.cuda.get_device_name(), calls=calls, device_us=1e6 * seconds, floor_us=1e6 * floor, share_of_floor=floor / seconds
    )

    def replay():
        graph.replay()
        torch.cuda.synchronize()

    benchmark.pedantic(replay, rounds=REPLAYS, warmup_rounds=1)


def plain(of):
    return of.reference


def fused(of):
    from kernels.triton_kernels.few_rows import product

    return product


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["qkv", "out", "gate_up", "down", "head"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("function", [plain, fused] if CUDA else [plain])
def test_product(benchmark, function, model, name, rows):
    benchmark.group = f"{model}, {name}, {rows} rows"
    of = products(SHAPES[model][0])[name]
    matrices, operands = of.matrices(DTYPE, DEVICE), of.operands(rows, DTYPE, DEVICE)
    measure(benchmark, in_turn(function(of), matrices, **operands), len(matrices), of.nbytes(rows, DTYPE.itemsize))


def caches(config, context: int, rows: int):
    """Pairs of random keys and values ``[1, kv_heads, capacity, head_dim]``, in turn, and their number."""
    shape = 1, config.num_kv_heads, context + rows, config.head_dim
    number = copies_for(2 * DTYPE.itemsize * config.num_kv_heads * (context + rows) * config.head_dim) if CUDA else 1
    pairs = torch.randn(number, 2, *shape, dtype=DTYPE, device=DEVICE)
    return cycle(list(pairs)), number


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("model", MODELS)
def test_attention(benchmark, model, context, rows):
    """Over a tree: row i's parent is row (i - 1) // 2."""
    benchmark.group = f"{model}, attention, {context} positions, {rows} rows"
    config, _ = SHAPES[model]
    following, number = caches(config, context, rows)
    queries = torch.randn(1, config.num_heads, rows, config.head_dim, device=DEVICE).to(DTYPE)
    parents = torch.tensor([[(row - 1) // 2 if row else -1 for row in range(rows)]], device=DEVICE)
    seen = Rows(torch.tensor([context], device=DEVICE), row_mask(parents))
    positions = context + rows
    moved = DTYPE.itemsize * config.head_dim * (2 * config.num_kv_heads * positions + 2 * config.num_heads * rows)
    flops = 4 * config.num_heads * rows * positions * config.head_dim
    measure(benchmark, lambda: attention(queries, *next(following), seen), number, moved, flops=flops)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("model", MODELS)
def test_rotation(benchmark, model, rows):
    benchmark.group = f"{model}, rotation, {rows} rows"
    config, _ = SHAPES[model]
    following, number = caches(config, 1024, rows)
    width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    qkv = torch.randn(1, rows, width, device=DEVICE).to(DTYPE)
    rope = torch.randn(2, 1, 1, rows, config.head_dim, device=DEVICE).to(DTYPE)
    norms = [torch.nn.RMSNorm(config.head_dim, 1e-6, device=DEVICE, dtype=DTYPE) if config.qk_norm else None for _ in range(2)]
    lengths = torch.tensor([1024], device=DEVICE)
    moved = DTYPE.itemsize * rows * (2 * width + 2 * config.head_dim)
    measure(benchmark, lambda: rotate_into(qkv, rope, config.num_heads, *norms, *next(following), lengths), number, moved)
