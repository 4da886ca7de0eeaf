"""What every drafter checkpoint shares: where it lies, and weights in safetensors under the module's own names."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from harness.errors import UserError
from strategies.base import TargetView

WEIGHTS = "model.safetensors"


def drafter_folder(name_or_folder: str, shipped: Path) -> Path:
    """The folder of a shipped drafter given by name, or of any other given by path."""
    for folder in (shipped / name_or_folder, Path(name_or_folder).expanduser()):
        if (folder / "config.json").is_file():
            return folder
    names = ", ".join(sorted(path.parent.name for path in shipped.glob("*/config.json"))) or "none"
    raise UserError(f"no drafter {str(name_or_folder)!r}: shipped are {names}; or give a folder with config.json and {WEIGHTS}")


def load_weights(drafter: nn.Module, folder: Path, target: TargetView) -> nn.Module:
    """Fill ``drafter`` (built on the meta device) with exactly the tensors it has, in the target's dtype and place."""
    path = folder / WEIGHTS
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"drafter weights {path} cannot be read ({error}); fetch or train the checkpoint again") from None
    tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    wanted = {name: tuple(tensor.shape) for name, tensor in drafter.state_dict().items()}
    # Some published files repeat the target's embedding and head; the target's own are used, never these.
    tensors = {name: tensor for name, tensor in tensors.items() if name in wanted or not name.startswith(("embed_tokens", "lm_head"))}
    if tensors.keys() != wanted.keys():
        odd = sorted(tensors.keys() ^ wanted.keys())
        raise UserError(f"drafter weights {path}: {len(odd)} tensors missing or unknown, {odd[0]} first; config.json and weights disagree")
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            raise UserError(f"drafter weights {path}: {name} has shape {tuple(tensors[name].shape)}, config.json asks for {shape}")
    state = {name: tensor.to(device=target.device, dtype=target.dtype) for name, tensor in tensors.items()}
    drafter.load_state_dict(state, assign=True)
    return drafter.eval().requires_grad_(False)


def save_weights(drafter: nn.Module, folder: Path) -> None:
    """bf16, the dtype of the published checkpoints."""
    tensors = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
