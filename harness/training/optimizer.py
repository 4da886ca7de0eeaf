"""Muon for the matrices, AdamW for the norms, one learning-rate schedule for both."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Optimizer:
    """``muon_lr`` 0 leaves everything to AdamW. Both rates warm up linearly, then fall as a cosine to a hundredth.

    Muon: arXiv 2502.16982, whose scaling lets both share a weight decay.
    """

    def __init__(self, module: nn.Module, steps: int, lr: float, muon_lr: float, warmup: float, weight_decay: float, clip: float):
        self.module, self.steps, self.warmup, self.clip = module, steps, max(1, int(warmup * steps)), clip
        matrices = [p for p in module.parameters() if p.ndim == 2 and muon_lr > 0]
        others = [p for p in module.parameters() if p.ndim != 2 or muon_lr <= 0]
        fused = next(module.parameters()).is_cuda
        self.parts = [torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=weight_decay, fused=fused)]
        if matrices:
            muon = torch.optim.Muon(matrices, lr=muon_lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
            self.parts.append(muon)
        self.peaks = [part.param_groups[0]["lr"] for part in self.parts]

    def step(self, step: int) -> None:
        """Apply the gradients of ``step`` (counted from 0) and clear them."""
        factor = self.rate(step)
        nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)
        for part, peak in zip(self.parts, self.peaks, strict=True):
            for group in part.param_groups:
                group["lr"] = peak * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def rate(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, as tensors with names."""
        return {
            f"{i}.{j}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
            for i, part in enumerate(self.parts)
            for j, p in enumerate(q for group in part.param_groups for q in group["params"])
            for name, value in part.state[p].items()
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        for key, value in state.items():
            i, j, name = key.split(".", 2)
            part = self.parts[int(i)]
            parameters = [q for group in part.param_groups for q in group["params"]]
            parameter = parameters[int(j)]
            part.state[parameter][name] = value.to(parameter.device)
