"""GGUF files of the llama and qwen3 architectures, with Hugging Face names and row order."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch

from harness.errors import UserError
from harness.models.config import FAMILIES, ModelConfig, RopeScaling
from harness.models.gguf_tokenizer import build_tokenizer
from harness.models.tensors import LazyTensors, model_tensors
from harness.models.tokenizer import ChatTokenizer

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_gguf(path: Path) -> tuple[ModelConfig, LazyTensors, ChatTokenizer, list[Path]]:
    """Configuration, tensors (fp32 when read), tokenizer and the weight files of one GGUF file."""
    try:
        reader = gguf.GGUFReader(path)
        fields = {key: entry.contents() for key, entry in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, MemoryError, OSError) as error:
        raise UserError(f"{path} is not a complete GGUF file, it is truncated or altered; fetch it again") from error
    stored = {tensor.name: tensor for tensor in reader.tensors}
    rope_factors = stored.pop("rope_freqs.weight", None)
    try:
        config = _config(fields, stored, _dequantised(path, rope_factors).numpy() if rope_factors else None)
    except KeyError as error:
        raise UserError(f"{path} lacks the metadata {error.args[0]}; fetch a complete GGUF file") from error
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise UserError(f"{path} cannot be run: {error}; choose another file") from error

    names = {_hugging_face_name(name): name for name in stored}
    shapes = {name: tuple(int(n) for n in reversed(stored[old].shape)) for name, old in names.items()}

    def read(name: str) -> torch.Tensor:
        tensor = _dequantised(path, stored[names[name]])
        if config.family == "llama" and name.endswith("q_proj.weight"):
            return _halves_apart(tensor, config.num_heads)
        if config.family == "llama" and name.endswith("k_proj.weight"):
            return _halves_apart(tensor, config.num_kv_heads)
        return tensor

    tensors = model_tensors(LazyTensors(shapes, read), config, str(path))
    return config, tensors, build_tokenizer(fields, config.end_tokens, str(path)), [path]


def _config(fields: Mapping[str, Any], tensors: Mapping[str, Any], rope_factors: numpy.ndarray | None) -> ModelConfig:
    family = fields["general.architecture"]
    if family not in FAMILIES:
        raise ValueError(f"architecture {family} is not supported, only {' and '.join(FAMILIES)} are")
    if fields.get("split.count", 1) > 1:
        raise ValueError(f"it is one of {fields['split.count']} parts (merge them with llama-gguf-split --merge)")
    if "token_embd.weight" not in tensors:
        raise KeyError("token_embd.weight")

    def value(key: str, *default: Any) -> Any:
        key = f"{family}.{key}"
        found = fields.get(key, *default) if default else fields[key]
        if isinstance(found, list):
            raise ValueError(f"{key} differs from layer to layer")
        # Floats are stored in 32 bits: their shortest decimal is the number that config.json had.
        return float(str(numpy.float32(found))) if isinstance(found, float) else found

    heads, hidden = value("attention.head_count"), value("embedding_length")
    head_dim = value("attention.key_length", hidden // heads)
    scaling = value("rope.scaling.type", "none")
    unsupported = {
        f"{family}.attention.value_length": value("attention.value_length", head_dim) != head_dim,
        f"{family}.rope.dimension_count": value("rope.dimension_count", head_dim) != head_dim,
        f"{family}.rope.scaling.type={scaling}": scaling != "none",
        f"{family}.rope.scale_linear": value("rope.scale_linear", 1.0) != 1.0,
        f"{family}.attention.sliding_window": bool(value("attention.sliding_window", 0)),
        f"{family}.expert_count": bool(value("expert_count", 0)),
    }
    for key, present in unsupported.items():
        if present:
            raise ValueError(f"{key} asks for something that the dense model does not compute")

    theta = float(value("rope.freq_base", 10000.0))
    ends = [fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
    return ModelConfig(
        family=family,
        hidden_size=hidden,
        num_layers=value("block_count"),
        num_heads=heads,
        num_kv_heads=value("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=value("feed_forward_length"),
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        context_length=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_scaling=None if rope_factors is None else _llama3_scaling(rope_factors, theta),
        tied_head="output.weight" not in tensors,
        qk_norm=family == "qwen3",
        end_tokens=tuple(dict.fromkeys(int(token) for token in ends if token is not None)),
    )


def _llama3_scaling(factors: numpy.ndarray, theta: float) -> RopeScaling:
    """The Llama-3 scaling that gives `factors` [head_dim / 2], the divisors of the rotary frequencies.

    GGUF stores the divisors alone. All Llama-3 models share three of the four constants behind them, so the fourth is
    read off and the whole is computed again: a file made with other constants is refused rather than guessed.
    """
    scaling = RopeScaling(float(factors.max()), low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)
    wavelengths = 2 * numpy.pi * theta ** (numpy.arange(factors.size) / factors.size)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((scaling.original_context / wavelengths - low) / (high - low)).clip(0, 1)
    if not numpy.allclose(factors, 1 / ((1 - blend) / scaling.factor + blend), rtol=1e-3):
        raise ValueError("rope_freqs.weight is not the rotary scaling of Llama 3, the only one supported")
    return scaling


def _hugging_face_name(name: str) -> str:
    """The Hugging Face name; one that the dense model does not have is returned as it is, to be refused by name."""
    if layer := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name):
        index, part = layer.groups()
        return f"model.layers.{index}.{_LAYER[part]}.weight" if part in _LAYER else name
    outer = name.removesuffix(".weight")
    return f"{_OUTER[outer]}.weight" if outer in _OUTER and outer != name else name


def _dequantised(path: Path, tensor: gguf.ReaderTensor) -> torch.Tensor:
    """fp32, in the shape of the Hugging Face tensor."""
    try:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise UserError(
            f"{path}: tensor {tensor.name} is of type {kind}, which cannot be read; choose a Q4, Q8, F16 or BF16 file"
        ) from error
    # F32 comes as a view of the read-only file, which torch would warn about.
    return torch.from_numpy(numpy.array(values, dtype=numpy.float32, copy=not values.flags.writeable))


def _halves_apart(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """[heads * head_dim, hidden] with each head's rows from rotary pairs side by side to Hugging Face's two halves.

    llama.cpp rotates rows (0, 1), (2, 3), ... of a llama head where Transformers rotates (0, d/2), (1, d/2 + 1), ...
    """
    rows, hidden = weight.shape
    return weight.view(heads, rows // heads // 2, 2, hidden).transpose(1, 2).reshape(rows, hidden)
