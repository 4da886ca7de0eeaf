"""A DFlash drafter's configuration: read liberally, written strictly (the published `config.json`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from strategies.base import TargetView
from strategies.checkpoint import check_heads, positive, read_json, whole


@dataclass(frozen=True)
class DrafterConfig:
    """Sizes as in the published files. ``target_layer_ids``: id i is the output of target layer i, counted from 0."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 40960
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    sliding_is_causal: bool = True

    def sliding(self, layer: int) -> bool:
        return bool(self.layer_types) and self.layer_types[layer] == "sliding_attention"


def spread_taps(num_target_layers: int, taps: int) -> tuple[int, ...]:
    """Layer ids spread as the paper's code spreads them: round(1 + i (L - 4) / (n - 1))."""
    if taps == 1:
        return (num_target_layers // 2,)
    return tuple(round(1 + i * (num_target_layers - 4) / (taps - 1)) for i in range(taps))


def read_config(path: Path) -> DrafterConfig:
    """Accepts the published layout, fields at top level, and the "speculators" nesting of the transformer's sizes."""
    data = read_json(path, "drafter")
    data = {**_object(data, "transformer_layer_config", path), **data}
    special = _object(data, "dflash_config", path)
    rope = _object(data, "rope_parameters", path)

    def field(name: str, default=None):
        for place in (special, data, rope):
            if place.get(name) is not None:
                return place[name]
        if default is None:
            raise UserError(f"drafter config {path} lacks {name!r}; it is not a DFlash checkpoint")
        return default

    if data.get("draft_vocab_size") not in (None, data.get("vocab_size")):
        raise UserError(
            f"drafter {path.parent} has a reduced vocabulary ({data['draft_vocab_size']} of {data.get('vocab_size')}) with "
            "its own head, which is not supported; use a checkpoint over the full vocabulary"
        )
    kind = rope.get("rope_type", _object(data, "rope_scaling", path).get("rope_type", "default"))
    if kind != "default":
        raise UserError(f"drafter {path.parent} uses RoPE scaling {kind!r}, which is not supported; only plain RoPE is")

    def size(name: str, **default) -> int:
        return whole(field(name, **default), name, path)

    hidden, heads, layers = size("hidden_size"), size("num_attention_heads"), size("num_hidden_layers")
    target_layers = field("num_target_layers", default=-1)
    taps = _ids(field("target_layer_ids", default=[]), path)
    if not taps:
        # "speculators" ids count hidden states: id i is the output of layer i - 1 (github.com/vllm-project/vllm/pull/40727).
        taps = tuple(i - 1 for i in _ids(field("aux_hidden_state_layer_ids", default=[]), path))
    if not taps:
        taps = spread_taps(whole(target_layers, "num_target_layers", path), layers)
    config = DrafterConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=size("num_key_value_heads", default=heads),
        head_dim=size("head_dim", default=hidden // heads),
        intermediate_size=size("intermediate_size"),
        vocab_size=size("vocab_size"),
        block_size=size("block_size"),
        mask_token_id=field("mask_token_id"),
        target_layer_ids=taps,
        num_target_layers=target_layers,
        rms_norm_eps=positive(data.get("rms_norm_eps", 1e-6), "rms_norm_eps", path),
        rope_theta=positive(field("rope_theta", default=10000.0), "rope_theta", path),
        max_position_embeddings=field("max_position_embeddings", default=40960),
        layer_types=tuple(data.get("layer_types") or ()),
        sliding_window=data.get("sliding_window"),
        sliding_is_causal=bool(special.get("sliding_is_causal", True)),
    )
    check_heads(heads, config.num_key_value_heads, config.head_dim, path)
    if config.layer_types and len(config.layer_types) != layers:
        raise UserError(f"drafter config {path}: layer_types lists {len(config.layer_types)} of {layers} layers; fetch or train it again")
    if any(config.sliding(layer) for layer in range(layers)):
        whole(config.sliding_window, "sliding_window", path)
    return config


def _object(data: dict, name: str, path: Path) -> dict:
    value = data.get(name) or {}
    if not isinstance(value, dict):
        raise UserError(f"drafter config {path}: {name} is {value!r}, not a JSON object; fetch or train it again")
    return value


def _ids(value, path: Path) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(i, int) for i in value):
        raise UserError(f"drafter config {path}: target_layer_ids is {value!r}, not a list of layer numbers; fetch or train it again")
    return tuple(value)


def write_config(config: DrafterConfig, path: Path) -> None:
    """The published layout, as vLLM, SGLang and the authors' code read it."""
    data = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": config.block_size,
        "dflash_config": {"mask_token_id": config.mask_token_id, "target_layer_ids": list(config.target_layer_ids)},
        "dtype": "bfloat16",
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "layer_types": list(config.layer_types) or ["full_attention"] * config.num_hidden_layers,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "num_target_layers": config.num_target_layers,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": config.rope_theta,
        "sliding_window": config.sliding_window,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }
    path.write_text(json.dumps(data, indent=2) + "\n")


def check_fits(config: DrafterConfig, target: TargetView, where: str) -> None:
    """Everything that would otherwise show as silently lost acceptance, found before the first token."""

    def refuse(what: str, found, wanted) -> None:
        raise UserError(f"drafter {where} does not fit the target: {what} is {found}, the target's is {wanted}; train one for it")

    if config.hidden_size != target.hidden_size:
        refuse("hidden size", config.hidden_size, target.hidden_size)
    if config.vocab_size != target.vocab_size:
        refuse("vocabulary", config.vocab_size, target.vocab_size)
    if config.num_target_layers not in (-1, target.num_layers):
        refuse("number of target layers", config.num_target_layers, target.num_layers)
    outside = [i for i in config.target_layer_ids if not 0 <= i < target.num_layers]
    if outside:
        refuse("tapped layer id", outside[0], f"0 to {target.num_layers - 1}")
    if not isinstance(config.mask_token_id, int) or not 0 <= config.mask_token_id < target.vocab_size:
        refuse("mask token id", repr(config.mask_token_id), f"0 to {target.vocab_size - 1}")
    if config.block_size > target.context_length:
        refuse("block size", config.block_size, f"context of {target.context_length}")
    if config.block_size < 2:
        raise UserError(f"drafter {where} has block size {config.block_size}; a block needs the bonus token and one slot")
