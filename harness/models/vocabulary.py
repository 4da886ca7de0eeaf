"""What rendering prompts takes of a model: its tokenizer, template and end tokens, without its weights."""

from dataclasses import dataclass
from pathlib import Path

from harness.models.tokenizer import ChatTokenizer


@dataclass(frozen=True)
class Vocabulary:
    """`context_length` is None where the files do not say. `checksum`: of the weights if they lie there too, else None."""

    tokenizer: ChatTokenizer
    context_length: int | None
    checksum: str | None


def load_vocabulary(path: Path) -> Vocabulary:
    """From a GGUF file, or a Hugging Face folder of any architecture. Raises UserError for what is absent or damaged."""
    from harness.models.weights import load_checkpoint, sha256

    path = Path(path).expanduser()
    if not path.is_dir():
        checkpoint = load_checkpoint(path)
        return Vocabulary(checkpoint.tokenizer, checkpoint.config.context_length, checkpoint.checksum)
    from harness.models.huggingface import read_vocabulary

    tokenizer, context_length, files = read_vocabulary(path)
    return Vocabulary(tokenizer, context_length, sha256(files) if files else None)
