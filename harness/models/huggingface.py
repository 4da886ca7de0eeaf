"""Hugging Face model folders: config.json, safetensors (one file or shards), tokenizer.json and the chat template."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors import SafetensorError, safe_open

from harness.errors import UserError, one_line
from harness.models.config import FAMILIES, ModelConfig, RopeScaling
from harness.models.tensors import LazyTensors, model_tensors
from harness.models.tokenizer import ChatTokenizer

_SCALING = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_context": "original_max_position_embeddings",
}


def read_folder(folder: Path) -> tuple[ModelConfig, LazyTensors, ChatTokenizer, list[Path]]:
    """Configuration, tensors (in their stored dtype), tokenizer and the weight files of a model folder."""
    config_file = folder / "config.json"
    raw = _json(config_file)
    try:
        config = read_config(raw, _end_tokens(folder, raw))
    except KeyError as error:
        raise UserError(f"{config_file} lacks the key {error.args[0]}; fetch the folder again") from error
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise UserError(f"{config_file} cannot be run: {error}; choose another model") from error
    files = _weight_files(folder)
    tensors = model_tensors(_open(files), config, str(folder))
    return config, tensors, _tokenizer(folder, config.end_tokens), files


def read_vocabulary(folder: Path) -> tuple[ChatTokenizer, int | None, list[Path]]:
    """Tokenizer, context length and the weight files, if there are any, of a folder of any architecture."""
    raw = _json(folder / "config.json")
    text = raw.get("text_config") if isinstance(raw.get("text_config"), dict) else {}
    length = raw.get("max_position_embeddings", text.get("max_position_embeddings"))
    tokenizer = _tokenizer(folder, _end_tokens(folder, text | raw))
    files = _weight_files(folder) if any(folder.glob("*.safetensors")) else []
    return tokenizer, length if isinstance(length, int) else None, files


def read_config(raw: Mapping[str, Any], end_tokens: tuple[int, ...]) -> ModelConfig:
    """`config.json` as a ModelConfig; absent keys mean what Transformers takes them to mean.

    Raises KeyError for a missing key and ValueError for what the dense model does not compute.
    """
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type {family!r} is not supported, only {' and '.join(FAMILIES)} are")
    rope = raw.get("rope_parameters") or {}
    scaling = rope or raw.get("rope_scaling") or {}
    _refuse_what_is_not_dense(raw, scaling)
    hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
    qwen3 = family == "qwen3"
    kv_heads, head_dim = raw.get("num_key_value_heads"), raw.get("head_dim")
    return ModelConfig(
        family=family,
        hidden_size=hidden,
        num_layers=raw["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=kv_heads or (32 if qwen3 and "num_key_value_heads" not in raw else heads),
        head_dim=head_dim or (128 if qwen3 else hidden // heads),
        intermediate_size=raw["intermediate_size"],
        vocab_size=raw["vocab_size"],
        context_length=raw["max_position_embeddings"],
        rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
        rope_scaling=_rope_scaling(scaling),
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        qk_norm=qwen3,
        end_tokens=end_tokens,
    )


def _refuse_what_is_not_dense(raw: Mapping[str, Any], scaling: Mapping[str, Any]) -> None:
    """A key that changes the computation must not be passed over: the tokens would be another model's."""
    layer_kinds = set(raw.get("layer_types") or ()) - {"full_attention"}
    partial = scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    window = raw.get("sliding_window")
    present = {
        f"hidden_act={raw.get('hidden_act')}": raw.get("hidden_act", "silu") != "silu",
        "attention_bias=true": bool(raw.get("attention_bias")),
        "mlp_bias=true": bool(raw.get("mlp_bias")),
        f"sliding_window={window}": bool(window) and raw.get("use_sliding_window", True),
        f"layer_types with {', '.join(map(str, sorted(layer_kinds)))}": bool(layer_kinds),
        f"partial_rotary_factor={partial}": partial not in (None, 1, 1.0),
        "rope_parameters of each kind of layer": any(isinstance(value, dict) for value in scaling.values()),
        "quantization_config": bool(raw.get("quantization_config")),
    }
    for key, found in present.items():
        if found:
            raise ValueError(f"{key} asks for something that the dense model does not compute")


def _rope_scaling(scaling: Mapping[str, Any]) -> RopeScaling | None:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope scaling {kind!r} is not supported, only 'llama3' is")
    return RopeScaling(**{name: scaling[key] for name, key in _SCALING.items()})


def _end_tokens(folder: Path, raw: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that end an answer: generation_config.json has the last word, as in Transformers' `generate`."""
    file = folder / "generation_config.json"
    ends = _json(file).get("eos_token_id") if file.exists() else None
    if ends is None:
        ends = raw.get("eos_token_id")
    if ends is None:
        return ()
    return tuple(ends) if isinstance(ends, list) else (ends,)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        shards = _json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise UserError(f"{index} has no weight_map; fetch the folder again")
        files = sorted({folder / str(name) for name in shards.values()})
        for file in files:
            if not file.is_file():
                raise UserError(f"{index} names the shard {file.name}, which is not in the folder; fetch it again")
        return files
    single = folder / "model.safetensors"
    if not single.is_file():
        raise UserError(f"{folder} has no model.safetensors and no {index.name}; give a folder that has one")
    return [single]


def _open(files: list[Path]) -> LazyTensors:
    """Tensors of all files, mapped into memory by `safetensors`."""
    handles, shapes = {}, {}
    for file in files:
        try:
            handle = safe_open(file, framework="pt")
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{file} is not a whole safetensors file, truncated or altered; fetch it again") from error
        for name in handle.keys():
            handles[name] = handle
            shapes[name] = tuple(handle.get_slice(name).get_shape())

    def read(name: str) -> torch.Tensor:
        return handles[name].get_tensor(name)

    return LazyTensors(shapes, read)


def _tokenizer(folder: Path, end_tokens: tuple[int, ...]) -> ChatTokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"{folder} has no tokenizer.json; add the model's fast tokenizer file to the folder")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # `tokenizers` raises plain Exception
        raise UserError(f"{file} is not a tokenizer file ({one_line(error)}); fetch it again") from error
    backend.no_truncation()
    backend.no_padding()
    settings_file, template_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    settings = _json(settings_file) if settings_file.exists() else {}
    template = settings.get("chat_template")
    if template_file.exists():  # the newer place, which Transformers prefers
        template = template_file.read_text(encoding="utf-8")
    if isinstance(template, list):  # several named templates
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    special = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = settings.get(key)
        if token is not None:
            special[key] = token["content"] if isinstance(token, dict) else token
    return ChatTokenizer(backend, template, special, end_tokens, str(folder))


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{file} does not exist; give a complete Hugging Face model folder") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} does not hold a JSON object; fetch it again")
    return content
