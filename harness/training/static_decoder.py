"""One decode step of a batch with fixed shapes: captured once as a graph on a GPU, replayed for every token."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.dense import DenseModel
from harness.models.layer_cache import ModelCache
from kernels import Rows


class StaticDecoder:
    """``decoder(tokens)``: logits ``[batch, vocab]`` behind each request's newest token, which joins its context."""

    def __init__(self, model: DenseModel, cache: ModelCache) -> None:
        self.model, self.cache = model, cache
        self.tokens = torch.zeros_like(cache.lengths)
        self.graph = None

    def __call__(self, tokens: Tensor) -> Tensor:
        self.tokens.copy_(tokens)
        if tokens.is_cuda and self.graph is None:
            self._step()  # warms up what must not be set up while capturing; the replay writes the same places
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = self._step()
        if self.graph is None:
            logits = self._step()
        else:
            self.graph.replay()
            logits = self.logits
        self.cache.lengths += 1
        return logits

    def _step(self) -> Tensor:
        lengths = self.cache.lengths
        hidden, _ = self.model(self.tokens[:, None], lengths[:, None], self.cache, Rows(lengths))
        return self.model.logits(hidden[:, -1])
