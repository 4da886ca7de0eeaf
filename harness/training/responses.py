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

    Temperature 0 is greedy. The same arguments on the same device give the same answers.
    """
    device = model.embed.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    width = max(map(len, prompts))
    tokens = torch.tensor([list(p) + [0] * (width - len(p)) for p in prompts], device=device)
    heat = torch.tensor(temperatures, dtype=torch.float32, device=device)
    ends = torch.tensor(list(end_tokens), device=device)

    cache = model.new_cache(len(prompts), width + max_new_tokens)
    cache.lengths.copy_(torch.tensor([len(p) for p in prompts]))
    logits = _prefill(model, cache, tokens)
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
                chosen, rows, heat = chosen[alive], rows[alive], heat[alive]
                cache = cache.of(alive)
                alive, decoder = alive[alive], None
        if decoder is None:
            decoder = StaticDecoder(model, cache)
        logits = decoder(chosen)
    return [answer[:count] for answer, count in zip(answers.tolist(), lengths.tolist(), strict=True)]


def _prefill(model: DenseModel, cache: ModelCache, tokens: Tensor) -> Tensor:
    """Fill the cache a slice of the batch at a time; logits behind every prompt's last token ``[batch, vocab]``.

    Prompts are padded on the right: a row sees only what is before it, and rows to come take the padding's places.
    """
    batch, width = tokens.shape
    positions = torch.arange(width, device=tokens.device)
    last = []
    size = max(1, PREFILL_TOKENS // width)
    for begin in range(0, batch, size):
        part = slice(begin, begin + size)
        own = ModelCache(cache.attention[:, :, part])
        hidden, _ = model(tokens[part], positions.expand_as(tokens[part]), own)
        ends = cache.lengths[part] - 1
        last.append(model.logits(hidden[torch.arange(len(ends), device=ends.device), ends]))
    return torch.cat(last)


def _choose(logits: Tensor, heat: Tensor, generator: torch.Generator) -> Tensor:
    """Arg-max of logits / temperature + Gumbel noise is a sample; without noise it is the greedy choice."""
    uniform = torch.rand(logits.shape, generator=generator, device=logits.device)
    noise = -torch.log(-torch.log(uniform.clamp(1e-10, 1 - 1e-7)))
    return (logits.float() + noise * heat[:, None]).argmax(dim=-1)
