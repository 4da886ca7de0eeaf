"""GGUF files: the same tensors and configuration as the folder they were made from, or a refusal in one line."""

import hashlib
import subprocess
import sys

import gguf
import pytest
import torch
from tiny_models import LLAMA3, VOCABULARY, refused, save_models, write_gguf

from harness.models import smollm2
from harness.models.weights import load_checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


def llama3_divisors(original_context=8192):
    """The divisors that Transformers applies to the rotary frequencies of `LLAMA3`."""
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = LLAMA3 | {"original_max_position_embeddings": original_context}
    config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=4, head_dim=8, rope_parameters=parameters)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 500000.0 ** -(torch.arange(0, 8, 2) / 8)
    return (plain / scaled).numpy()


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind, tolerance", [("F32", 0), ("F16", 1e-3), ("BF16", 5e-3), ("Q8_0", 5e-3), ("Q4_1", 0.1)])
def test_gguf_gives_the_folder_s_tensors(saved, tmp_path, family, kind, tolerance):
    path = write_gguf(tmp_path / "m.gguf", saved, family, gguf.GGMLQuantizationType[kind])
    checkpoint, folder = load_checkpoint(path), load_checkpoint(saved[family].folder)
    assert set(checkpoint.tensors) == set(folder.tensors)
    for name, tensor in checkpoint.tensors.items():
        assert tensor.dtype == torch.float32 and tensor.is_contiguous()
        torch.testing.assert_close(tensor, folder.tensors[name], rtol=0, atol=tolerance)
    assert checkpoint.config.tied_head == folder.config.tied_head
    assert checkpoint.config.vocab_size == VOCABULARY and checkpoint.config.end_tokens == (1, 0)
    assert checkpoint.tokenizer.render([{"role": "user", "content": "the cat"}]) == \
        folder.tokenizer.render([{"role": "user", "content": "the cat"}])


def test_gguf_rope_scaling_of_llama_3(saved, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", saved, "llama", rope_freqs=llama3_divisors())
    assert load_checkpoint(path).config == load_checkpoint(saved["llama"].folder).config
    other = write_gguf(tmp_path / "o.gguf", saved, "llama", rope_freqs=llama3_divisors(original_context=512))
    refused(other, "o.gguf", "rope_freqs.weight")


@pytest.mark.parametrize("change, words", [
    ({"arch": "gemma3"}, ["gemma3", "llama and qwen3"]),
    ({"rope.scaling.type": "yarn"}, ["yarn"]),
    ({"expert_count": 8}, ["expert_count"]),
    ({"rope.dimension_count": 4}, ["rope.dimension_count"]),
    ({"attention.head_count": None}, ["llama.attention.head_count"]),
    ({"attention.head_count": 0}, ["m.gguf"]),
    ({"block_count": 3}, ["model.layers.2"]),
    ({"feed_forward_length": 128}, ["[64, 32]", "[128, 32]"]),
])
def test_gguf_that_would_compute_something_else(saved, tmp_path, change, words):
    refused(write_gguf(tmp_path / "m.gguf", saved, "llama", **change), "m.gguf", *words)


@pytest.mark.parametrize("keep", [0, 0.001, 0.02, 0.05, 0.1, 0.5, 0.9999])
def test_truncated_gguf(saved, tmp_path, keep):
    path = write_gguf(tmp_path / "m.gguf", saved, "llama")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    refused(path, path, "truncated", "fetch it again")


def test_gguf_in_name_only(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"<html>not found</html>" * 100)
    refused(tmp_path / "m.gguf", "m.gguf", "fetch it again")


def test_default_model_as_transformers_reads_it():
    """sha256 of tensors as `AutoModelForCausalLM.from_pretrained(folder, gguf_file=...)` 5.24 gives them in fp32."""
    expected = {
        "model.layers.0.self_attn.q_proj.weight": "54b377bbfa2deab945dfdba7fb59e0ca3eb74329358bd1b53b635b3ff37c1a56",
        "model.layers.0.self_attn.k_proj.weight": "814d239237d0643a10d9468d42e617b687ef032f85ad617389de27cf27f6fd34",
        "model.layers.29.mlp.down_proj.weight": "c19605745425a11e704e305ce3d27b632c406195d39eb3377e9cfb140ac643d1",
    }
    checkpoint = load_checkpoint(smollm2.fetch())
    assert checkpoint.checksum == smollm2.SHA256
    for name, digest in expected.items():
        assert hashlib.sha256(checkpoint.tensors[name].numpy().tobytes()).hexdigest() == digest, name


def test_reading_costs_no_copy_of_the_weights():
    """Opening a model must not load it: the decoder takes tensors one by one, in the dtype that it wants."""
    code = (
        "import resource; from harness.models import weights, gguf, smollm2; path = smollm2.fetch();"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; weights.load_checkpoint(path);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 300e6  # all weights in fp32 are 538 MB
