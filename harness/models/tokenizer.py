"""Text to token ids and back, and conversations to prompts, as the model's own files say."""

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tokenizers

from harness.errors import UserError, one_line

# Some templates (Llama 3.2) write today's date into the prompt. A run that is to be repeated must not depend on the day
# it ran on, so templates see the date that Llama's own fall back to.
TEMPLATE_DATE = datetime.datetime(2024, 7, 26)


@dataclass
class ChatTokenizer:
    """A tokenizer with its chat template. `special` maps the template's names, such as `bos_token`, to their text.

    `file` is where it came from, for error messages.
    """

    backend: tokenizers.Tokenizer
    template: str | None
    special: Mapping[str, str]
    end_tokens: tuple[int, ...]
    file: str = "the model"

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, with nothing added; special tokens written in the text become their ids."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return self.backend.decode([int(token) for token in ids], skip_special_tokens=True)

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The prompt ids of a conversation of {"role", "content"} messages, up to where the answer begins."""
        return self.encode(self.render_text(messages))

    def render_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt as text. Raises UserError when there is no template or when it refuses the messages."""
        import jinja2

        try:
            return self._compiled.render(
                messages=[dict(message) for message in messages], tools=None, documents=None,
                add_generation_prompt=True, enable_thinking=False, **self.special,
            )
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"the chat template of {self.file} refuses this conversation: {one_line(error)}") from error

    @cached_property
    def _compiled(self):
        """The template as Transformers compiles it: same sandbox, whitespace rules, filters and helpers."""
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if not self.template:
            raise UserError(f"{self.file} has no chat template; choose an instruction-tuned model")

        def raise_exception(message: str) -> None:
            raise jinja2.TemplateError(message)

        def tojson(value: Any, **options: Any) -> str:
            return json.dumps(value, **{"ensure_ascii": False} | options)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = tojson
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = TEMPLATE_DATE.strftime
        try:
            return environment.from_string(self.template)
        except jinja2.TemplateError as error:
            raise UserError(f"the chat template of {self.file} cannot be read: {one_line(error)}") from error
