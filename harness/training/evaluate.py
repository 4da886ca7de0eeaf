"""Acceptance of a drafter in training, on prompts that it never saw.

Greedy acceptance needs no verification pass: walk the target's own greedy continuation and count how far each chain
follows it. Decoding for real gives the same figure (to rounding) and is what results report.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.models.dense import DenseModel
from harness.models.tokenizer import ChatTokenizer
from harness.suites import Suite
from harness.training.step import autocast, with_features
from harness.training.responses import write
from strategies.training import Trainer

SEQUENCES_AT_ONCE = 8


def continuations(model: DenseModel, tokenizer: ChatTokenizer, suite: Suite, max_new_tokens: int) -> list[tuple[list[int], int]]:
    """First turns of a suite with the target's greedy answers: (prompt and answer ids, length of the prompt)."""
    prompts = [tokenizer.render([{"role": "user", "content": row.turns[0]}]) for row in suite.rows]
    prompts = [p for p in prompts if len(p) + max_new_tokens <= model.config.context_length]
    answers = write(model, prompts, [0.0] * len(prompts), max_new_tokens, model.config.end_tokens, 0)
    return [(p + a, len(p)) for p, a in zip(prompts, answers, strict=True)]


@torch.no_grad()
def acceptance_length(model: DenseModel, trainer: Trainer, walks: Sequence[tuple[list[int], int]]) -> float:
    """Tokens a round, pooled over rounds, committed: sum of (N - 1) / sum of rounds."""
    device = model.embed.weight.device
    tokens_after_first = rounds = 0
    ordered = sorted(walks, key=lambda walk: len(walk[0]))
    for i in range(0, len(ordered), SEQUENCES_AT_ONCE):
        part = ordered[i : i + SEQUENCES_AT_ONCE]
        lengths = torch.tensor([len(ids) for ids, _ in part], device=device)
        starts = torch.tensor([start for _, start in part], device=device)
        tokens = torch.zeros(len(part), -(-int(lengths.max()) // 8) * 8, dtype=torch.long, device=device)
        for row, (ids, _) in enumerate(part):
            tokens[row, : len(ids)] = torch.tensor(ids, device=device)
        # Compiled code knows the few shapes of training; these vary.
        with torch.compiler.set_stance("force_eager"):
            batch = with_features(model, trainer.taps, tokens, starts, lengths)
            with autocast(batch.features):
                accepted = trainer.accepted(batch).tolist()
        for row, (ids, start) in enumerate(part):
            position = start
            tokens_after_first += len(ids) - start - 1
            while position < len(ids) - 1:
                position += accepted[row][position] + 1
                rounds += 1
    return tokens_after_first / rounds
