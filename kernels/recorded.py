"""Work on a GPU recorded as a captured graph, which then costs the host one call."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WARM_UPS = 2


class Recorded:
    """Calling it replays ``work``: on the very tensors it had, whatever the host holds by then.

    ``work`` must ask the host nothing, and leave what later work reads in tensors that were there before. It runs twice
    before it is recorded, which compiles kernels and sets up libraries; neither can be captured. ``pool``: the memory of what
    lives within it, which graphs can share that never run at the same time. ``graph`` is torch's.
    """

    def __init__(self, work: Callable[[], None], pool=None) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        # An engine may ask the GPU things from other threads meanwhile; they are none of this graph.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            work()
        self.graph.instantiate()

    def __call__(self) -> None:
        self.graph.replay()
