"""AdamW with a linear warm-up and a cosine fall to a hundredth of the peak rate."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Optimizer:
    """The rate lives in a tensor on the device, so that a captured step follows the schedule."""

    def __init__(self, module: nn.Module, steps: int, lr: float, warmup: float, weight_decay: float, clip: float) -> None:
        self.parameters = list(module.parameters())
        self.steps, self.peak, self.clip = steps, lr, clip
        self.warmup = max(1, int(warmup * steps))
        device = self.parameters[0].device
        self.lr = torch.tensor(0.0, device=device)
        options = {"fused": True, "capturable": True} if device.type == "cuda" else {}
        self.adamw = torch.optim.AdamW(self.parameters, lr=self.lr, betas=(0.9, 0.95), weight_decay=weight_decay, **options)

    def set_rate(self, step: int) -> None:
        """The rate of ``step``, counted from 0."""
        if step < self.warmup:
            factor = (step + 1) / self.warmup
        else:
            progress = (step - self.warmup) / max(1, self.steps - self.warmup)
            factor = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        self.lr.fill_(self.peak * factor)

    def step(self) -> None:
        """Clip and apply the gradients, then clear them."""
        nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, as tensors with names."""
        return {
            f"{i}.{name}": value for i, p in enumerate(self.parameters) for name, value in self.adamw.state[p].items()
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        for key, value in state.items():
            i, name = key.split(".", 1)
            parameter = self.parameters[int(i)]
            # The step count lives where the optimizer put it: on the device only when capturable.
            device = "cpu" if name == "step" and not parameter.is_cuda else parameter.device
            self.adamw.state[parameter][name] = value.to(device)
