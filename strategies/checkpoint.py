"""What every drafter checkpoint shares: where it lies, and weights in safetensors under the module's own names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from harness.errors import UserError
from strategies.base import TargetView

WEIGHTS, RECORD = "model.safetensors", "training.json"


def drafter_folder(name_or_folder: str, shipped: Path) -> Path:
    """The folder of a shipped drafter given by name, or of any other given by path."""
    for folder in (shipped / name_or_folder, Path(name_or_folder).expanduser()):
        if (folder / "config.json").is_file():
            return folder
    names = ", ".join(sorted(path.parent.name for path in shipped.glob("*/config.json"))) or "none"
    raise UserError(f"no drafter {str(name_or_folder)!r}: shipped are {names}; or give a folder with config.json and {WEIGHTS}")


def read_json(path: Path, kind: str) -> dict:
    """The object in a checkpoint's config.json; ``kind`` says of what, for the error."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{kind} config {path} cannot be read ({error}); give the folder of a trained one") from None
    if not isinstance(data, dict):
        raise UserError(f"{kind} config {path} holds no JSON object; give the folder of a trained one")
    return data


def whole(value, name: str, path: Path) -> int:
    """``value`` of the config's field ``name``, refused unless it can be a size."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"drafter config {path}: {name} is {value!r}, not a whole number of at least 1; fetch or train it again")
    return value


def positive(value, name: str, path: Path) -> float:
    """``value`` of the config's field ``name``, refused unless it is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise UserError(f"drafter config {path}: {name} is {value!r}, not a number above 0; fetch or train it again")
    return float(value)


def check_heads(heads: int, kv_heads: int, head_dim: int, path: Path) -> None:
    """Refuse what no grouped-query attention with rotary embedding can have."""
    if heads % kv_heads:
        raise UserError(f"drafter config {path}: {heads} heads cannot share {kv_heads} key/value heads; fetch or train it again")
    if head_dim % 2:
        raise UserError(f"drafter config {path}: head_dim {head_dim} is odd, so it has no rotary pairs; fetch or train it again")


def load_weights(drafter: nn.Module, folder: Path, target: TargetView) -> nn.Module:
    """Fill ``drafter`` (built on the meta device) with exactly the tensors it has, in the target's dtype and place."""
    path = folder / WEIGHTS
    try:
        _check_recorded(path)
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
    drafter.weights_file = path
    return drafter.eval().requires_grad_(False)


def _check_recorded(path: Path) -> None:
    """A checkpoint of ours names its weights' sha256 in its training record; other bytes are refused."""
    record = path.parent / RECORD
    recorded = json.loads(record.read_text()).get("weights_sha256") if record.is_file() else None
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if recorded not in (None, found):
        raise UserError(
            f"drafter weights {path} are altered: sha256 {found[:16]}…, {RECORD} names {recorded[:16]}…; fetch or train the checkpoint again"
        )


def fresh(drafter: nn.Module) -> nn.Module:
    """First weights as transformers starts them: normal, 0.02; norms stay at one."""
    for module in drafter.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
    return drafter


def start_from(drafter: nn.Module, folder: Path) -> None:
    """Fill a drafter in training with a checkpoint's weights, in the drafter's own dtype."""
    try:
        drafter.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"init={folder} cannot start this drafter ({str(error).splitlines()[0]}); give a checkpoint of its shape") from None


def save_weights(drafter: nn.Module, folder: Path) -> None:
    """bf16, the dtype of the published checkpoints."""
    tensors = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
