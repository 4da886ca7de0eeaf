"""What rendering prompts takes of a model, from folders of any architecture, with weights or without."""

import json
import shutil

import pytest
from tiny_models import write_gguf

from harness.errors import UserError
from harness.models.vocabulary import load_vocabulary
from harness.models.weights import load_checkpoint

MESSAGES = [{"role": "user", "content": "the cat sat"}]


@pytest.fixture
def folder(tiny_models, tmp_path):
    return shutil.copytree(tiny_models["qwen3"].folder, tmp_path / "model")


def test_it_is_the_checkpoints_own(folder):
    found, checkpoint = load_vocabulary(folder), load_checkpoint(folder)
    assert found.tokenizer.render(MESSAGES) == checkpoint.tokenizer.render(MESSAGES)
    assert found.tokenizer.end_tokens == checkpoint.config.end_tokens == (1, 0)
    assert (found.context_length, found.checksum) == (16384, checkpoint.checksum)


def test_a_gguf_file(tiny_models, tmp_path):
    file = write_gguf(tmp_path / "m.gguf", tiny_models, "qwen3")
    found, checkpoint = load_vocabulary(file), load_checkpoint(file)
    assert (found.context_length, found.checksum) == (16384, checkpoint.checksum)
    assert found.tokenizer.render(MESSAGES) == checkpoint.tokenizer.render(MESSAGES)


def test_neither_weights_nor_a_known_architecture_are_needed(folder):
    config = json.loads((folder / "config.json").read_text())
    text = {"max_position_embeddings": 4096, "eos_token_id": 5}
    (folder / "config.json").write_text(json.dumps({"model_type": "sees_and_hears", "text_config": text}))
    (folder / "generation_config.json").unlink()
    for file in folder.glob("*.safetensors"):
        file.unlink()
    found = load_vocabulary(folder)
    assert (found.context_length, found.checksum, found.tokenizer.end_tokens) == (4096, None, (5,))
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    assert load_vocabulary(folder).context_length is None


def test_a_folder_without_a_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="has no tokenizer.json"):
        load_vocabulary(folder)
