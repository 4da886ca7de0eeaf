"""Hugging Face folders: what the files say is what the decoder gets, and a damaged file is refused in one line."""

import hashlib
import json
import shutil

import pytest
import torch
from tiny_models import LLAMA3, VOCABULARY, refused, save_models

from harness.models.config import RopeScaling, tensor_shapes
from harness.models.weights import load_checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def llama(saved, tmp_path):
    """A copy of the llama folder to damage."""
    return shutil.copytree(saved["llama"].folder, tmp_path / "llama")


def edit(file, **changes):
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | changes))


def same_tensors(checkpoint, state):
    assert set(checkpoint.tensors) == set(tensor_shapes(checkpoint.config))
    for name, tensor in checkpoint.tensors.items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_folder_as_transformers_saved_it(saved, family):
    checkpoint = load_checkpoint(saved[family].folder)
    same_tensors(checkpoint, saved[family].state)
    config = checkpoint.config
    assert (config.family, config.qk_norm, config.tied_head) == (family, family == "qwen3", family == "qwen3")
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.context_length) == (4, 2, 8, 16384)
    assert config.rope_scaling == (RopeScaling(8.0, 1.0, 4.0, 8192) if family == "llama" else None)
    assert config.rope_theta == (500000.0 if family == "llama" else 10000.0)
    assert config.end_tokens == checkpoint.tokenizer.end_tokens == (1, 0)
    weights = (saved[family].folder / "model.safetensors").read_bytes()
    assert checkpoint.checksum == hashlib.sha256(weights).hexdigest()


def test_older_config_keys_and_defaults(llama):
    (llama / "generation_config.json").unlink()
    edit(llama / "config.json", rope_parameters=None, rope_theta=123.0, head_dim=None, eos_token_id=[1, 2],
         rope_scaling={**LLAMA3, "type": "llama3"})
    config = load_checkpoint(llama).config
    assert (config.rope_theta, config.head_dim, config.end_tokens) == (123.0, 8, (1, 2))
    assert config.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 8192)


def test_dtype_is_the_file_s(saved, tmp_path):
    shutil.copytree(saved["qwen3"].folder, tmp_path / "m", dirs_exist_ok=True)
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(saved["qwen3"].folder, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "m")
    assert {tensor.dtype for tensor in load_checkpoint(tmp_path / "m").tensors.values()} == {torch.bfloat16}


def test_shards(saved, llama):
    (llama / "model.safetensors").unlink()
    saved["llama"].model.save_pretrained(llama, max_shard_size="40KB")
    shards = sorted(llama.glob("model-*.safetensors"))
    assert len(shards) > 1
    checkpoint = load_checkpoint(llama)
    same_tensors(checkpoint, saved["llama"].state)
    assert checkpoint.checksum == hashlib.sha256(b"".join(file.read_bytes() for file in shards)).hexdigest()
    shards[1].unlink()
    refused(llama, shards[1].name, "fetch it again")


@pytest.mark.parametrize("change, words", [
    ({"model_type": "gemma3"}, ["gemma3", "llama", "qwen3"]),
    ({"attention_bias": True}, ["attention_bias"]),
    ({"mlp_bias": True}, ["mlp_bias"]),
    ({"sliding_window": 4096}, ["sliding_window=4096"]),
    ({"layer_types": ["full_attention", "linear_attention"]}, ["linear_attention"]),
    ({"hidden_act": "gelu"}, ["hidden_act=gelu"]),
    ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor=0.5"]),
    ({"quantization_config": {"quant_method": "awq"}}, ["quantization_config"]),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, ["yarn", "llama3"]),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, ["rope_parameters"]),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, ["low_freq_factor"]),
    ({"num_hidden_layers": 3}, ["model.layers.2"]),
    ({"num_hidden_layers": 1}, ["model.layers.1"]),
    ({"num_hidden_layers": 0}, ["num_layers is 0"]),
    ({"num_attention_heads": 0, "head_dim": None}, ["config.json"]),
    ({"num_key_value_heads": 3}, ["4 heads", "3 key/value"]),
    ({"hidden_size": 64}, ["[320, 32]", "[320, 64]"]),
    ({"vocab_size": 200}, ["[320, 32]", "[200, 32]"]),
])
def test_configurations_that_would_compute_something_else(llama, change, words):
    edit(llama / "config.json", **change)
    refused(llama, llama, *words)


def test_end_token_outside_the_vocabulary(llama):
    edit(llama / "generation_config.json", eos_token_id=VOCABULARY)
    refused(llama, "end token 320")


def test_tensor_without_a_place(llama):
    from safetensors.torch import load_file, save_file

    tensors = load_file(llama / "model.safetensors")
    save_file(tensors | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}, llama / "model.safetensors")
    refused(llama, "q_proj.bias")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("keep", [0, 0.3, 0.99])
def test_truncated_file_of_a_folder(llama, name, keep):
    file = llama / name
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * keep)])
    refused(llama, file, "fetch it again")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_missing_file_of_a_folder(llama, name):
    (llama / name).unlink()
    refused(llama, llama, name)


def test_missing_config_key(llama):
    content = json.loads((llama / "config.json").read_text())
    del content["intermediate_size"]
    (llama / "config.json").write_text(json.dumps(content))
    refused(llama, "lacks the key intermediate_size")


def test_paths_that_are_no_model(tmp_path):
    refused(tmp_path / "absent", "no model at", tmp_path / "absent")
    (tmp_path / "weights.bin").write_bytes(b"x")
    refused(tmp_path / "weights.bin", "weights.bin", ".gguf")
