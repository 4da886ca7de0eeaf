"""Reading and writing MTP heads: a folder with `config.json` and `model.safetensors`."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path

import torch

from harness.errors import UserError
from kernels import packed
from strategies.base import TargetView
from strategies.checkpoint import check_heads, drafter_folder, fresh, load_weights, positive, read_json, save_weights, whole
from strategies.mtp.head import HeadConfig, MTPHead

SHIPPED = Path(__file__).parent / "drafters"
ARCHITECTURE = "MTPHead"
SIZES = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size", "num_target_layers")


def load_head(name_or_folder: str, target: TargetView) -> MTPHead:
    """A shipped head by name, or one from a folder, checked against the target."""
    folder = drafter_folder(name_or_folder, SHIPPED)
    config = read_config(folder / "config.json")
    pairs = {
        "hidden size": (config.hidden_size, target.hidden_size),
        "vocabulary": (config.vocab_size, target.vocab_size),
        "number of target layers": (config.num_target_layers, target.num_layers),
    }
    for what, (found, wanted) in pairs.items():
        if found != wanted:
            raise UserError(f"MTP head {name_or_folder} does not fit the target: {what} is {found}, the target's is {wanted}; train one for it")
    with torch.device("meta"):
        head = MTPHead(config)
    load_weights(head, folder, target)
    for name in ("embedding_norm", "hidden_norm", "projection", "norm"):  # the layer's own are packed with the layer
        setattr(head, name, packed(getattr(head, name)))
    return head


def read_config(path: Path) -> HeadConfig:
    data = read_json(path, "MTP head")
    if data.get("architectures") != [ARCHITECTURE]:
        raise UserError(f"{path} describes {data.get('architectures')}, not an {ARCHITECTURE}; give the folder of a trained head")
    missing = [f.name for f in fields(HeadConfig) if f.name not in data]
    if missing:
        raise UserError(f"MTP head config {path} lacks {missing[0]!r}; fetch or train the checkpoint again")
    for name in SIZES:
        whole(data[name], name, path)
    for name in ("rms_norm_eps", "rope_theta"):
        positive(data[name], name, path)
    check_heads(data["num_attention_heads"], data["num_key_value_heads"], data["head_dim"], path)
    return HeadConfig(**{f.name: data[f.name] for f in fields(HeadConfig)})


def save_head(head: MTPHead, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = {"architectures": [ARCHITECTURE], "model_type": "mtp_head", "dtype": "bfloat16", **asdict(head.config)}
    (folder / "config.json").write_text(json.dumps(data, indent=2) + "\n")
    save_weights(head, folder)


def new_head(config: HeadConfig) -> MTPHead:
    """One to be trained."""
    return fresh(MTPHead(config))
