"""Models of a few thousand numbers, written to disk by the libraries that users' files come from."""

import json
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.errors import UserError
from harness.models.weights import load_checkpoint

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


def save_models(parent: Path) -> dict[str, SimpleNamespace]:
    """A folder for each family under `parent`, as Transformers writes it, with the model and the state dict that went in."""
    import transformers

    common = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                  intermediate_size=64, vocab_size=VOCABULARY, max_position_embeddings=16384, eos_token_id=1)
    configs = {
        "llama": transformers.LlamaConfig(**common, rope_parameters=LLAMA3),
        "qwen3": transformers.Qwen3Config(**common, tie_word_embeddings=True, bos_token_id=None),
    }
    result = {}
    for family, config in configs.items():
        folder = parent / family
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
