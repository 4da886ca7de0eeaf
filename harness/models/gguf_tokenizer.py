"""The tokenizer that a GGUF file carries as metadata."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from harness.errors import UserError, kind_and_line
from harness.models.tokenizer import ChatTokenizer

CONTROL, USER_DEFINED = 3, 4  # token types of the GGUF format

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])


# How each `tokenizer.ggml.pre` cuts text into words before the merges, and what goes with it.
_PRE_TOKENIZERS = {
    "smollm": _smollm,
    "qwen2": lambda: _split(_WORDS.format(digits="")),
    "llama-bpe": lambda: _split(_WORDS.format(digits="{1,3}")),
}


def build_tokenizer(fields: Mapping[str, Any], end_tokens: tuple[int, ...], file: str) -> ChatTokenizer:
    """The tokenizer in the metadata `fields`. Raises UserError naming `file` for a kind that is not known exactly."""
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        known = ", ".join(f"gpt2/{name}" for name in _PRE_TOKENIZERS)
        raise UserError(f"{file}: its tokenizer is {kind}/{pre}, not one of {known}; use the Hugging Face folder")
    try:
        tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
        merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
        if len(types) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens have {len(types)} types")
        backend = Tokenizer(models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=pre == "llama-bpe",
        ))
        special = {f"{name}_token": tokens[fields[key]] for name, key in _special_keys(fields)}
    except Exception as error:  # `tokenizers` raises plain Exception for a merge that is not in the vocabulary
        raise UserError(f"{file}: its tokenizer cannot be read ({kind_and_line(error)}); fetch the file again") from error
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    # Added tokens keep the ids that the vocabulary gives them; only control tokens are left out when decoding.
    added = {CONTROL: backend.add_special_tokens, USER_DEFINED: backend.add_tokens}
    for token_type, add in added.items():
        add([AddedToken(token, normalized=False, special=token_type == CONTROL)
             for token, its_type in zip(tokens, types) if its_type == token_type])
    return ChatTokenizer(backend, fields.get("tokenizer.chat_template"), special, end_tokens, file)


def _special_keys(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    keys = [(name, f"tokenizer.ggml.{key}_token_id") for name, key in names.items()]
    return [(name, key) for name, key in keys if key in fields]
