"""The training loop: frozen target, features taken on the fly, a drafter's own loss, resumable at any saved step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from harness.models.dense import DenseModel
from harness.training.batches import Batches
from harness.training.optimizer import Optimizer
from harness.training.step import Step
from strategies.training import Trainer


@dataclass(frozen=True)
class LoopConfig:
    """``batch`` sequences a step, padded to one of ``widths``; progress is saved every ``save_every`` steps."""

    steps: int
    batch: int
    widths: tuple[int, ...]
    lr: float
    warmup: float
    weight_decay: float
    clip: float
    save_every: int
    seed: int
    compile: bool


def train(
    model: DenseModel,
    trainer: Trainer,
    batches: Batches,
    config: LoopConfig,
    folder: Path,
    report: Callable[[int, float], None],
    stop_after: int | None = None,
) -> dict:
    """Train to ``config.steps`` (or ``stop_after``), from the last saved step on. Returns losses and seconds so far."""
    optimizer = Optimizer(trainer.module, config.steps, config.lr, config.warmup, config.weight_decay, config.clip)
    history = _restore(trainer, optimizer, folder)
    if config.compile:
        _compile(model, trainer)
    device = model.embed.weight.device
    step_once = Step(model, trainer, optimizer)
    begun, before = time.perf_counter(), history["seconds"]
    last, window = min(config.steps, stop_after or config.steps), []
    for step in range(history["step"], last):
        generator = torch.Generator(device).manual_seed(config.seed * 1_000_003 + step)
        tokens, starts, lengths = batches[step]
        noise = torch.rand(tokens.shape, generator=generator, device=device)
        optimizer.set_rate(step)
        window.append(step_once(tokens, starts, lengths, noise))
        if (step + 1) % 50 == 0 or step + 1 == last:
            mean = float(torch.stack(window).mean())
            history["losses"].append([step + 1, round(mean, 4)])
            window = []
            report(step + 1, mean)
        history["step"], history["seconds"] = step + 1, before + time.perf_counter() - begun
        if (step + 1) % config.save_every == 0 or step + 1 == last:
            _save(trainer, optimizer, history, folder)
    return history


def _compile(model: DenseModel, trainer: Trainer) -> None:
    """Layer by layer: all layers of a kind share one compiled graph a shape."""
    torch._dynamo.config.cache_size_limit = 64
    for layer in model.layers:
        layer.compile(dynamic=False)
    trainer.compile()


def _save(trainer: Trainer, optimizer: Optimizer, history: dict, folder: Path) -> None:
    """Two files, the JSON last: it names the step that the tensors belong to."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"module.{name}": t.detach().contiguous() for name, t in trainer.module.state_dict().items()}
    state = {f"optimizer.{name}": t.contiguous() for name, t in optimizer.state().items()}
    path = folder / f"state-{history['step']}.safetensors"
    save_file({**weights, **state}, path)
    unfinished = folder / "progress.unfinished"
    unfinished.write_text(json.dumps(history) + "\n")
    unfinished.rename(folder / "progress.json")
    for old in folder.glob("state-*.safetensors"):
        if old != path:
            old.unlink()


def _restore(trainer: Trainer, optimizer: Optimizer, folder: Path) -> dict:
    progress = folder / "progress.json"
    if not progress.exists():
        return {"step": 0, "seconds": 0.0, "losses": []}
    history = json.loads(progress.read_text())
    tensors = load_file(folder / f"state-{history['step']}.safetensors")
    trainer.module.load_state_dict({k.removeprefix("module."): t for k, t in tensors.items() if k.startswith("module.")})
    optimizer.restore({k.removeprefix("optimizer."): t for k, t in tensors.items() if k.startswith("optimizer.")})
    return history
