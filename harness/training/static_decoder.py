"""One decode step of a batch with fixed shapes: captured once as a graph on a GPU, replayed for every token."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.dense import DenseModel
from harness.models.layer_cache import AttentionCache, ModelCache
from kernels import Span


class _StaticLayer:
    """Appends at a slot whose number lies on the device; hands out the whole buffers."""

    def __init__(self, layer: AttentionCache, slot: Tensor) -> None:
        self.keys, self.values, self.slot = layer.keys, layer.values, slot

    def append(self, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.slot, keys)
        self.values.index_copy_(2, self.slot, values)
        return self.keys, self.values


class StaticDecoder:
    """``decoder(tokens, slot)``: logits ``[batch, vocab]`` of left-padded requests whose newest tokens fill ``slot``."""

    def __init__(self, model: DenseModel, cache: ModelCache, padding: Tensor) -> None:
        device = padding.device
        self.model, self.padding = model, padding
        self.slot = torch.zeros(1, dtype=torch.long, device=device)
        self.tokens = torch.zeros(len(padding), dtype=torch.long, device=device)
        self.cache = ModelCache([_StaticLayer(layer, self.slot) for layer in cache.layers])
        self.graph = None

    def __call__(self, tokens: Tensor, slot: int) -> Tensor:
        self.tokens.copy_(tokens)
        self.slot.fill_(slot)
        if not tokens.is_cuda:
            return self._step()
        if self.graph is None:
            self._step()  # warms up what must not be set up while capturing; writes the same slot as the replay
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = self._step()
        self.graph.replay()
        return self.logits

    def _step(self) -> Tensor:
        span = Span(self.padding, (self.slot + 1).expand(len(self.padding)).contiguous())
        positions = (self.slot - self.padding)[:, None]
        hidden, _ = self.model(self.tokens[:, None], positions, self.cache, span)
        return self.model.logits(hidden[:, -1])
