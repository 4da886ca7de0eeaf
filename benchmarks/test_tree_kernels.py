"""Times of the draft-tree kernels and of their references, by pytest-benchmark.

    python -m pytest benchmarks/test_tree_kernels.py --benchmark-json=FILE

On a GPU a kernel is captured ``CALLS`` times in one CUDA graph, as a round holds it, and the graph replayed: the host's launches
are not in the figure. ``extra_info.device_us`` is then the median time of one call between events of the GPU, in µs; the
statistics of pytest-benchmark are of a whole replay. The references' figures are of one call on the CPU, where they run in a
round too. Without a GPU only the references run, at sizes that show that this file works and nothing else.
"""

import importlib

import pytest
import torch

from benchmarks.graph_time import REPLAYS, captured, replay_s
from kernels import acceptance, cache, masks, tree

pytest.importorskip("pytest_benchmark")

CUDA = torch.cuda.is_available()
CALLS = 50
VOCAB, SLOTS, NODES = (151_936, 15, (16, 64, 512)) if CUDA else (2_000, 3, (16,))
LAYERS, KV_HEADS, CAPACITY, HEAD_DIM = (36, 8, 4096, 128) if CUDA else (2, 2, 128, 16)


def slot_logits(batch):
    """A few tokens stand out in every slot, by less the deeper it lies: trees are wide and deep at once."""
    torch.manual_seed(0)
    logits = torch.randn(batch, SLOTS + 1, VOCAB) * 2
    favoured = torch.rand(batch, SLOTS + 1, VOCAB).topk(16).indices
    height = torch.linspace(16, 6, 16) - torch.arange(SLOTS + 1)[:, None] * 0.4
    return logits.scatter_add(2, favoured, height.expand(batch, -1, -1).contiguous()).bfloat16()[:, 1:]


def drawn_tree(batch, nodes):
    return tree.best_first_tree(torch.arange(batch), slot_logits(batch), nodes)


def candidates_case(batch, nodes):
    return "candidates.ranked_candidates", tree.ranked_candidates, (slot_logits(batch), nodes)


def tree_case(batch, nodes):
    return "grow.best_first_tree", tree.best_first_tree, (torch.arange(batch), slot_logits(batch), nodes)


def bits_case(batch, nodes):
    return "masks.ancestor_bits", masks.ancestor_bits, (drawn_tree(batch, nodes)[1],)


def walk_case(batch, nodes):
    tokens, parents, *_ = drawn_tree(batch, nodes)
    chosen = torch.full_like(tokens, -1).scatter(1, parents[:, 1:], tokens[:, 1:])  # after every row one of its children
    return "walk.walk", acceptance.walk, (tokens, parents, chosen, min(SLOTS, nodes) + 1)


def commit_case(batch, nodes):
    caches = torch.zeros(LAYERS, 2, batch, KV_HEADS, CAPACITY, HEAD_DIM, dtype=torch.bfloat16)
    path = (2 * torch.arange(SLOTS + 1)).repeat(batch, 1)  # all but the root move
    return "commit.keep_rows", cache.keep_rows, (caches, torch.full((batch,), CAPACITY // 2), path)


def greedy_case(batch, nodes):
    logits = torch.randn(batch, 1 + nodes, VOCAB, dtype=torch.bfloat16)
    return "greedy.greedy_rows", acceptance.greedy_rows, (logits,)


def replayed(function):
    """A replay of ``CALLS`` captured calls, to its end; and the median time of one of them on the device, in µs."""
    graph = captured(function, CALLS)

    def replay():
        graph.replay()
        torch.cuda.synchronize()

    return replay, replay_s(graph) / CALLS * 1e6


CASES = {
    "candidates": candidates_case,
    "tree": tree_case,
    "bits": bits_case,
    "walk": walk_case,
    "commit": commit_case,
    "greedy": greedy_case,
}


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("batch", [1, 8] if CUDA else [1])
@pytest.mark.parametrize("triton", [True, False] if CUDA else [False], ids=lambda triton: "triton" if triton else "reference")
@pytest.mark.parametrize("name", CASES)
def test_time(benchmark, name, triton, batch, nodes):
    kernel, reference, arguments = CASES[name](batch, nodes)
    benchmark.group = f"{name}, batch {batch}, {nodes} nodes"
    benchmark.extra_info.update(vocabulary=VOCAB, slots=SLOTS, device=torch.cuda.get_device_name() if triton else "cpu")
    if not triton:
        benchmark.pedantic(reference, arguments, rounds=3, warmup_rounds=1)
        return
    module, function = kernel.split(".")
    launcher = getattr(importlib.import_module(f"kernels.triton_kernels.{module}"), function)
    arguments = [argument.cuda() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    replay, device_us = replayed(lambda: launcher(*arguments))
    benchmark.extra_info.update(calls=CALLS, device_us=device_us)
    benchmark.pedantic(replay, rounds=REPLAYS, warmup_rounds=1)
