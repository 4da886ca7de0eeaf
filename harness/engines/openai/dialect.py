"""What a server can be asked, from the most exact down: ids both ways, prompts as ids, conversations as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.engines.openai.client import Client, HttpStatus
from harness.engines.openai.stream import Answer, ServerFailed
from harness.errors import UserError
from harness.records import Request

# What a server answers to a request whose form it does not know, rather than for another reason.
_NOT_TAKEN = (400, 404, 405, 415, 422, 501)
PROBE_TOKENS = 8


@dataclass(frozen=True)
class Dialect:
    """``prompts``: how they are sent. ``counts``: what output tokens are counted from. ``ids``: vLLM's additions are used."""

    path: str
    prompts: str
    counts: str
    ids: bool = False

    def body(self, model: str, request: Request, limit: int) -> dict[str, Any]:
        """The request's JSON, for at most ``limit`` tokens."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if sampling.temperature > 0:
            body["seed"] = sampling.seed
        if self.path == CHAT.path:
            body["messages"] = [dict(message) for message in request.messages]
        else:
            body["prompt"] = list(request.prompt_ids)
        if self.ids:
            # Said in full: a server takes what is left out from the model's own generation_config.json.
            body |= {"top_k": sampling.top_k, "min_p": 0.0, "repetition_penalty": 1.0}
            body |= {"return_token_ids": True, "stop_token_ids": list(request.end_tokens)}
        return body


IDS = Dialect("/v1/completions", "token ids", "token ids", ids=True)
COMPLETIONS = Dialect("/v1/completions", "token ids", "usage")
CHAT = Dialect("/v1/chat/completions", "messages, rendered by the server", "usage")


def find(client: Client, base_url: str, model: str, probe: Request) -> tuple[Dialect, Answer]:
    """The first dialect in which the server answers ``probe``, and that answer. Raises ``UserError``."""
    refusals = []
    for dialect in (IDS, COMPLETIONS, CHAT):
        try:
            answer = client.stream(base_url + dialect.path, dialect.body(model, probe, PROBE_TOKENS))
        except HttpStatus as error:
            if error.status in (401, 403):
                raise UserError(f"{base_url} wants a key ({error}); set OPENAI_API_KEY in the environment") from None
            if error.status not in _NOT_TAKEN:
                raise UserError(f"{base_url} fails at its first request ({error}); see the server's own log") from None
            refusals.append(f"{dialect.path}: {error}")
        except ServerFailed as error:
            refusals.append(f"{dialect.path}: {error}")
        except Exception as error:
            raise UserError(f"{base_url} fails at its first request ({error}); see the server's own log") from None
        else:
            if _fits(dialect, answer, probe):
                return dialect, answer
            refusals.append(f"{dialect.path}: {_what_came(dialect, answer, probe)}")
    raise UserError(f"{base_url} answers in no way that can be measured ({'; '.join(refusals)})")


def _fits(dialect: Dialect, answer: Answer, probe: Request) -> bool:
    read_as_sent = answer.prompt_tokens in (None, len(probe.prompt_ids))
    return dialect is CHAT or (read_as_sent and (answer.has_ids or not dialect.ids))


def _what_came(dialect: Dialect, answer: Answer, probe: Request) -> str:
    if dialect.ids and not answer.has_ids:
        return "no token ids came back"
    return f"{len(probe.prompt_ids)} prompt tokens were read as {answer.prompt_tokens}"


def describe(dialect: Dialect, answer: Answer, probe: Request) -> Mapping[str, Any]:
    """For the record. Different ``probe_prompt_tokens`` mean that the server's chat template is not the harness's."""
    return {
        "api": dialect.path,
        "prompts": dialect.prompts,
        "counts": dialect.counts,
        "probe_prompt_tokens": {"sent": len(probe.prompt_ids), "read": answer.prompt_tokens},
    }
