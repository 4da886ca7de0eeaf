"""One road to a model's weights: a Hugging Face folder or a GGUF file in, a checked `Checkpoint` out."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.errors import UserError
from harness.models.config import ModelConfig
from harness.models.tokenizer import ChatTokenizer


@dataclass
class Checkpoint:
    """A model as its files have it.

    `tensors` carry Hugging Face names, `lm_head.weight` only where the head is untied; each access reads the file
    anew. `checksum` is the sha256 (hex) of the weight files' bytes, one after the other in the order of their names.
    """

    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    tokenizer: ChatTokenizer
    checksum: str


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a Hugging Face folder or a `.gguf` file. Raises UserError for what is absent, damaged or not supported."""
    path = Path(path).expanduser()
    if path.is_dir():
        from harness.models.huggingface import read_folder

        config, tensors, tokenizer, files = read_folder(path)
    elif path.is_file() and path.suffix == ".gguf":
        from harness.models.gguf import read_gguf

        config, tensors, tokenizer, files = read_gguf(path)
    elif path.exists():
        raise UserError(f"{path} is neither a folder nor a .gguf file; give a Hugging Face model folder or a GGUF file")
    else:
        raise UserError(f"no model at {path}; give an existing Hugging Face model folder or .gguf file")
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens and the model only {config.vocab_size}; "
            "use the tokenizer that belongs to these weights"
        )
    return Checkpoint(config, tensors, tokenizer, sha256(files))


def sha256(files: Iterable[Path]) -> str:
    """Hex digest over the bytes of `files`, one after the other in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(files):
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def resolve(model_cfg: Mapping) -> Path:
    """The folder or file that a `model` configuration names: its `path`, else what its `source` function gives.

    `source` is a dotted name of a function without arguments that returns a path (it may download). Raises UserError
    when the path does not exist or neither key is set.
    """
    path, source = model_cfg.get("path"), model_cfg.get("source")
    name = model_cfg.get("name")
    if path:
        found = Path(path).expanduser()
        if not found.exists():
            raise UserError(f"model.path={path} does not exist; give a Hugging Face model folder or a .gguf file")
        return found
    if not source:
        raise UserError(f"model={name} names no files; add model.path=FOLDER_OR_GGUF_FILE")
    from hydra.utils import get_method

    try:
        fetch = get_method(source)
    except Exception as error:  # Hydra wraps import errors in several kinds of its own
        raise UserError(f"model.source={source} cannot be imported; name it as package.module.function") from error
    return Path(fetch())
