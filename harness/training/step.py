"""One training step: features, loss, gradients, update. On a GPU captured as one graph for each width of batch."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.models.dense import DenseModel
from harness.training.optimizer import Optimizer
from strategies.training import Trainer, TrainingBatch


class Step:
    """``step(tokens, starts, lengths, noise)`` -> the loss, a scalar on the device.

    The first batch of a width runs eagerly (kernels compile, the optimizer makes its state), the second is captured.
    """

    def __init__(self, model: DenseModel, trainer: Trainer, optimizer: Optimizer) -> None:
        self.model, self.trainer, self.optimizer = model, trainer, optimizer
        self.graphs: dict[int, tuple | None] = {}
        self.stream = torch.cuda.Stream() if model.embed.weight.is_cuda else None

    def __call__(self, *inputs: Tensor) -> Tensor:
        width = inputs[0].shape[1]
        if self.stream is None:
            return self._run(*inputs)
        if width not in self.graphs:
            self.graphs[width] = None
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                loss = self._run(*inputs)
            torch.cuda.current_stream().wait_stream(self.stream)
            return loss
        if self.graphs[width] is None:
            static = [t.clone() for t in inputs]
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=self.stream):
                loss = self._run(*static)
            self.graphs[width] = (graph, static, loss)
        graph, static, loss = self.graphs[width]
        for buffer, value in zip(static, inputs, strict=True):
            buffer.copy_(value)
        graph.replay()
        return loss.clone()

    def _run(self, tokens: Tensor, starts: Tensor, lengths: Tensor, noise: Tensor) -> Tensor:
        batch = with_features(self.model, self.trainer.taps, tokens, starts, lengths)
        with autocast(batch.features):
            loss = self.trainer.loss(batch, noise)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def autocast(features: Tensor) -> torch.autocast:
    """The drafter's weights are fp32; beside a bf16 target its products are bf16."""
    enabled = features.dtype == torch.bfloat16
    return torch.autocast(features.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)


@torch.no_grad()
def with_features(model: DenseModel, taps: tuple[int, ...], tokens: Tensor, starts: Tensor, lengths: Tensor) -> TrainingBatch:
    """Run the target over right-padded ``tokens``; what stands behind a sequence's end is seen by nobody before it."""
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    _, features = model(tokens, positions, taps=taps)
    return TrainingBatch(tokens, starts, lengths, features)
