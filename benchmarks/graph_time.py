"""How long work takes on a GPU when it is replayed from a captured graph, as a decoding round replays it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

REPLAYS = 30
COLD_BYTES = 300 << 20  # several times what a GPU's L2 holds


def captured(function: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph:
    """``calls`` calls of ``function`` in one graph. It runs before, outside of it: kernels compile, libraries set themselves up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            function()
    return graph


class Graphs:
    """Makes many graphs one after another, each only while it is timed: they share memory, and the allocator keeps what it has."""

    def __init__(self) -> None:
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self._last = None  # holds the pool until another graph does

    def replay_s(self, function: Callable[[], object], replays: int) -> float:
        """``replay_s`` of one call of ``function``, which runs once before."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            function()
            graph = torch.cuda.CUDAGraph()
            self._stream.synchronize()
            graph.capture_begin(pool=self._pool)
            function()
            graph.capture_end()
        torch.cuda.synchronize()
        self._last = graph
        return replay_s(graph, replays)


def replay_s(graph: torch.cuda.CUDAGraph, replays: int = REPLAYS) -> float:
    """Median seconds of a replay by the device's clock, the first not counted."""
    times = []
    for _ in range(1 + replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return median(times[1:])


def copies_for(nbytes: int) -> int:
    """How many tensors of ``nbytes`` to use in turn, so that none is still in the L2 when its turn comes again."""
    return max(2, -(-COLD_BYTES // nbytes))
