"""The target writes: many sequences at once, greedy or sampled, on a static cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.models.dense import DenseModel
from harness.models.layer_cache import ModelCache
from harness.training.static_decoder import StaticDecoder

PREFILL_TOKENS = 1 << 16
COMPACT_EVERY = 32


@torch.inference_mode()
def write(
    model: DenseModel,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    max_new_tokens: int,
    end_tokens: Sequence[int],
    seed: int,
) -> list[list[int]]:
    """Continuations of ``prompts``, each up to its first end token (kept) or ``max_new_tokens``.

    Prompts are padded on the left, so that all rows of the batch write the same cache slot; a row's positions count from
    its own first token. Temperature 0 is greedy. The same arguments on the same device give the same answers.
    """
    device = model.embed.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    width = max(map(len, prompts))
    padding = torch.tensor([width - len(p) for p in prompts], device=device)
    tokens = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
    heat = torch.tensor(temperatures, dtype=torch.float32, device=device)
    ends = torch.tensor(list(end_tokens), device=device)

    cache = model.new_cache(len(prompts), width + max_new_tokens)
    logits = _prefill(model, cache, tokens, padding)
    answers = torch.zeros(len(prompts), max_new_tokens, dtype=torch.long, device=device)
    lengths = torch.full((len(prompts),), max_new_tokens, device=device)
    rows = torch.arange(len(prompts), device=device)
    alive = torch.ones(len(prompts), dtype=torch.bool, device=device)
    decoder = None
    for step in range(max_new_tokens):
        chosen = _choose(logits, heat, generator)
        answers[rows, step] = chosen
        ended = alive & torch.isin(chosen, ends)
        lengths[rows] = torch.where(ended, step + 1, lengths[rows])
        alive = alive & ~ended
        if step % COMPACT_EVERY == 0 or step + 1 == max_new_tokens:
            living = int(alive.sum())
            if living == 0 or step + 1 == max_new_tokens:
                break
            if living < 0.85 * len(rows):
                chosen, rows, padding, heat = chosen[alive], rows[alive], padding[alive], heat[alive]
                _select(cache, alive)
                alive, decoder = alive[alive], None
        if decoder is None:
            decoder = StaticDecoder(model, cache, padding)
        logits = decoder(chosen, width + step)
    return [answer[:count] for answer, count in zip(answers.tolist(), lengths.tolist(), strict=True)]


def _prefill(model: DenseModel, cache: ModelCache, tokens: Tensor, padding: Tensor) -> Tensor:
    """Fill the cache a slice of the batch at a time; logits of every last row ``[batch, vocab]``."""
    batch, width = tokens.shape
    slots = torch.arange(width, device=tokens.device)
    causal = slots[None, :] <= slots[:, None]
    last = []
    size = max(1, PREFILL_TOKENS // width)
    for begin in range(0, batch, size):
        part, left = tokens[begin : begin + size], padding[begin : begin + size]
        # A padded row must see something, or its softmax is undefined: it sees itself.
        visible = causal & ((slots >= left[:, None])[:, None] | (slots[None, :] == slots[:, None]))
        view = ModelCache([_Slice(layer, begin, begin + len(part)) for layer in cache.layers])
        hidden, _ = model(part, (slots - left[:, None]).clamp(min=0), view, visible)
        last.append(model.logits(hidden[:, -1]))
    cache.length = width
    return torch.cat(last)


class _Slice:
    """Some requests of an attention cache, to append to."""

    def __init__(self, layer, begin: int, end: int) -> None:
        self.layer, self.begin, self.end = layer, begin, end

    def append(self, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        end = start + keys.shape[2]
        self.layer.keys[self.begin : self.end, :, start:end] = keys
        self.layer.values[self.begin : self.end, :, start:end] = values
        return keys, values


def _select(cache: ModelCache, alive: Tensor) -> None:
    for layer in cache.layers:
        layer.keys = layer.keys[alive]
        layer.values = layer.values[alive]


def _choose(logits: Tensor, heat: Tensor, generator: torch.Generator) -> Tensor:
    """Arg-max of logits / temperature + Gumbel noise is a sample; without noise it is the greedy choice."""
    uniform = torch.rand(logits.shape, generator=generator, device=logits.device)
    noise = -torch.log(-torch.log(uniform.clamp(1e-10, 1 - 1e-7)))
    return (logits.float() + noise * heat[:, None]).argmax(dim=-1)
