"""Model folders of a few thousand numbers that vLLM's CPU kernels take (heads of 32), with drafters and heads to fit."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny_decoding import drafter_config, loaded, shaken, tiny_config
from tokenizers import Tokenizer, models, pre_tokenizers

from harness.models.config import ModelConfig, tensor_shapes
from harness.models.export import config_json
from strategies.dflash.checkpoint import new_drafter, save_drafter

SIZES = dict(hidden_size=64, num_layers=3, num_heads=2, num_kv_heads=1, head_dim=32, intermediate_size=32, rope_scaling=None)
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


def write_model(folder: Path, seed: int = 0, **changes) -> ModelConfig:
    """A random llama in fp32 with words ``w0 w1 …`` for a vocabulary."""
    config = tiny_config(**(SIZES | changes))
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.rand(shape, generator=generator) * 2 - 1 for name, shape in tensor_shapes(config).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_json(config, torch.float32)))
    write_tokenizer(folder, config.vocab_size)
    return config


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_drafter(folder: Path, target: Path, seed: int = 1, **changes) -> None:
    """A random DFlash drafter of two layers for the model in ``target``; vLLM taps every layer but the last."""
    sizes = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=32, block_size=4, target_layer_ids=(0, 1))
    save_drafter(shaken(new_drafter(drafter_config(loaded(target), **(sizes | changes))), seed), folder)


def write_pair(folder: Path, **target) -> Path:
    """``folder/target`` and ``folder/drafter``, its drafter; ``target`` goes to ``write_model``. Returns ``folder``."""
    write_model(folder / "target", **target)
    write_drafter(folder / "drafter", folder / "target")
    return folder


def write_mimo(folder: Path, seed: int = 0) -> None:
    """A random MiMo: Qwen2 layers with biases, and one MTP layer of its own."""
    hidden, heads, kv_heads, head_dim, mlp, vocabulary, layers = 64, 2, 1, 32, 64, 8, 2
    folder.mkdir(parents=True)
    config = {
        "architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": mlp, "vocab_size": vocabulary,
        "num_hidden_layers": layers, "num_nextn_predict_layers": 1, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": True, "dtype": "float32",
        "use_sliding_window": False, "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    block = {
        "self_attn.q_proj.weight": (heads * head_dim, hidden), "self_attn.q_proj.bias": (heads * head_dim,),
        "self_attn.k_proj.weight": (kv_heads * head_dim, hidden), "self_attn.k_proj.bias": (kv_heads * head_dim,),
        "self_attn.v_proj.weight": (kv_heads * head_dim, hidden), "self_attn.v_proj.bias": (kv_heads * head_dim,),
        "self_attn.o_proj.weight": (hidden, heads * head_dim), "mlp.gate_proj.weight": (mlp, hidden),
        "mlp.up_proj.weight": (mlp, hidden), "mlp.down_proj.weight": (hidden, mlp),
        "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
    }  # fmt: skip
    special = {"token_layernorm.weight": (hidden,), "hidden_layernorm.weight": (hidden,), "final_layernorm.weight": (hidden,),
               "input_proj.weight": (hidden, 2 * hidden)}  # fmt: skip
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}
    shapes |= {f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in block.items()}
    shapes |= {f"model.mtp_layers.0.{name}": shape for name, shape in {**block, **special}.items()}
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.rand(shape, generator=generator) - 0.5 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, vocabulary)
