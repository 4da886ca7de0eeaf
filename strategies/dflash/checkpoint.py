"""Reading and writing DFlash checkpoints: a folder with `config.json` and `model.safetensors`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch

from strategies.base import TargetView
from strategies.checkpoint import drafter_folder, fresh, load_weights, read_json, save_weights
from strategies.dflash.config import DrafterConfig, check_fits, read_config, write_config
from strategies.dflash.drafter import DFlashDrafter

SHIPPED = Path(__file__).parent / "drafters"


def load_drafter(name_or_folder: str, target: TargetView) -> DFlashDrafter:
    """A shipped drafter by name, or one from a folder, checked against the target."""
    folder = drafter_folder(name_or_folder, SHIPPED)
    config = read_config(folder / "config.json")
    check_fits(config, target, str(name_or_folder))
    with torch.device("meta"):
        drafter = DFlashDrafter(config)
    return load_weights(drafter, folder, target)


def find_drafter(name_or_folder: str, target: Path) -> tuple[Path, DrafterConfig]:
    """Folder and configuration of a drafter that another engine will load, checked against the target's ``config.json``."""
    folder = drafter_folder(name_or_folder, SHIPPED)
    config, sizes = read_config(folder / "config.json"), read_json(target / "config.json", "target")
    sizes = {**sizes, **(sizes.get("text_config") or {})}
    view = SimpleNamespace(
        hidden_size=sizes.get("hidden_size"),
        vocab_size=sizes.get("vocab_size"),
        num_layers=sizes.get("num_hidden_layers"),
        context_length=sizes.get("max_position_embeddings"),
    )
    check_fits(config, view, str(name_or_folder))
    return folder, config


def save_drafter(drafter: DFlashDrafter, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_config(drafter.config, folder / "config.json")
    save_weights(drafter, folder)


def new_drafter(config: DrafterConfig) -> DFlashDrafter:
    """One to be trained."""
    return fresh(DFlashDrafter(config))
