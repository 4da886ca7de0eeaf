"""A GGUF model as a Hugging Face folder, for engines that read nothing else: the same weights, made once and checked."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from harness.cache_folder import cache_folder
from harness.errors import UserError
from harness.models.config import ModelConfig
from harness.models.tokenizer import ChatTokenizer
from harness.models.weights import Checkpoint, load_checkpoint, sha256

FORMAT = "2"  # of the folder that is written; another one is written anew
_RECORD = "made_from.json"
_CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def hugging_face_folder(path: Path, dtype: torch.dtype) -> Path:
    """``path`` itself if it is a folder; of a ``.gguf`` file a folder in the cache, its tensors in ``dtype``.

    A folder that is whole, and made from these very weights, is used again. Raises UserError when it cannot be written.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return path
    checkpoint = load_checkpoint(path)
    name = str(dtype).removeprefix("torch.")
    folder = cache_folder() / "hugging-face" / f"{path.stem}-{checkpoint.checksum[:12]}-{name}"
    if not _whole(folder, checkpoint.checksum):
        try:
            _place(checkpoint, dtype, folder)
        except OSError as error:
            raise UserError(f"{folder} cannot be written ({error}); free some space or set HARNESS_CACHE to another folder") from error
    return folder


def _whole(folder: Path, checksum: str) -> bool:
    """Whether the folder was made from these weights in this format, and its weights are still the ones written."""
    try:
        record = json.loads((folder / _RECORD).read_text())
        with safe_open(folder / "model.safetensors", framework="pt"):
            pass
        written = sha256([folder / "model.safetensors"])
    except (OSError, ValueError, SafetensorError):
        return False
    return record == {"format": FORMAT, "model_sha256": checksum, "weights_sha256": written}


def _place(checkpoint: Checkpoint, dtype: torch.dtype, folder: Path) -> None:
    """Write beside the final place and rename, so that a folder is there whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="export-") as made:
        made = Path(made) / "model"
        write_folder(checkpoint, dtype, made)
        record = {"format": FORMAT, "model_sha256": checkpoint.checksum, "weights_sha256": sha256([made / "model.safetensors"])}
        (made / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(made, folder)


def write_folder(checkpoint: Checkpoint, dtype: torch.dtype, folder: Path) -> None:
    """config.json, generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True)
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in checkpoint.tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _json(folder / "config.json", config_json(checkpoint.config, dtype))
    _json(folder / "generation_config.json", {"eos_token_id": list(checkpoint.config.end_tokens)})
    _tokenizer(folder, checkpoint.tokenizer)


def config_json(config: ModelConfig, dtype: torch.dtype) -> dict:
    """``config.json`` as Transformers writes it, so that ``harness.models.huggingface`` reads the same configuration."""
    data = {
        "architectures": [_CLASSES[config.family]],
        "model_type": config.family,
        "attention_bias": False,
        "dtype": str(dtype).removeprefix("torch."),
        "eos_token_id": list(config.end_tokens),
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.context_length,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied_head,
        "vocab_size": config.vocab_size,
    }
    scaling = config.rope_scaling
    if scaling is not None:
        data["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    return data


def _tokenizer(folder: Path, tokenizer: ChatTokenizer) -> None:
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **tokenizer.special}
    if tokenizer.template:
        settings["chat_template"] = tokenizer.template
    _json(folder / "tokenizer_config.json", settings)


def _json(file: Path, data: dict) -> None:
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
