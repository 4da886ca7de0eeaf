"""Tiny targets, drafters with random weights, and a proposer that knows the answer: for tests that decode."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

import strategies.baseline
import strategies.ddtree
import strategies.dflash
import strategies.mtp
from harness.engines.torch.decode import decode
from harness.engines.torch.engine import target_view
from harness.models.config import ModelConfig, RopeScaling, tensor_shapes
from harness.models.dense import DenseModel, build
from harness.models.weights import load_checkpoint
from harness.records import Decoded, Request, Sampling
from strategies.base import DraftTree, Proposer
from strategies.dflash.checkpoint import new_drafter, save_drafter
from strategies.dflash.config import DrafterConfig, spread_taps
from strategies.mtp.checkpoint import new_head, save_head
from strategies.mtp.head import HeadConfig


def tiny_config(family: str = "llama", **changes) -> ModelConfig:
    sizes = dict(
        family=family, hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=48,
        vocab_size=48, context_length=256, rms_norm_eps=1e-5, rope_theta=10000.0, tied_head=family == "qwen3",
        rope_scaling=RopeScaling(8.0, 1.0, 4.0, 64) if family == "llama" else None, qk_norm=family == "qwen3", end_tokens=(),
    )  # fmt: skip
    return ModelConfig(**sizes | changes)


def tiny_target(config: ModelConfig | None = None, seed: int = 0, head_scale: float = 1.0) -> DenseModel:
    """Random weights in fp32; ``head_scale`` sharpens or flattens what the model says."""
    config = config or tiny_config()
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.rand(shape, generator=generator) * 2 - 1 for name, shape in tensor_shapes(config).items()}
    tensors["model.norm.weight"] *= head_scale
    return build(config, tensors, torch.float32, "cpu")


def loaded(folder: Path) -> DenseModel:
    checkpoint = load_checkpoint(folder)
    return build(checkpoint.config, checkpoint.tensors, torch.float32, "cpu")


def drafter_config(model: DenseModel, **changes) -> DrafterConfig:
    config = model.config
    sizes = dict(
        hidden_size=config.hidden_size, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, vocab_size=config.vocab_size, block_size=5, mask_token_id=config.vocab_size - 1,
        target_layer_ids=spread_taps(config.num_layers, 2) if config.num_layers >= 4 else (0, config.num_layers - 1),
        num_target_layers=config.num_layers,
    )  # fmt: skip
    return DrafterConfig(**sizes | changes)


def head_config(model: DenseModel, **changes) -> HeadConfig:
    config = model.config
    sizes = dict(
        hidden_size=config.hidden_size, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=48,
        vocab_size=config.vocab_size, num_target_layers=config.num_layers, rms_norm_eps=1e-5, rope_theta=10000.0,
        trained_steps=3,
    )  # fmt: skip
    return HeadConfig(**sizes | changes)


def shaken(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Weights wide enough that what a drafter reads changes what it says; norms of ones would hide a misplaced norm."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator) * 2 - 1)
    return module


def proposers(model: DenseModel, folder: Path, k: int = 3, budget: int = 12, **changes) -> dict[str, Proposer]:
    """All four strategies as a run builds them, their random drafters written to and read from ``folder``."""
    save_drafter(shaken(new_drafter(drafter_config(model, **changes)), 1), folder / "dflash")
    save_head(shaken(new_head(head_config(model)), 2), folder / "mtp")
    view = target_view(model)
    return {
        "baseline": strategies.baseline.build(view, "baseline"),
        "mtp": strategies.mtp.build(view, "mtp", str(folder / "mtp"), k),
        "dflash": strategies.dflash.build(view, "dflash", str(folder / "dflash")),
        "ddtree": strategies.ddtree.build(view, "ddtree", str(folder / "dflash"), budget),
    }


def run(model: DenseModel, proposer: Proposer, prompt: Sequence[int], max_new_tokens: int, ends=(), **sampling) -> Decoded:
    return decode(model, proposer, [Request(tuple(prompt), tuple(ends), Sampling(max_new_tokens=max_new_tokens, **sampling))])[0]


def told(decoded: Decoded) -> tuple:
    """All of a record but its times: tokens, finish reason, and the counts of every round."""
    return decoded.tokens, decoded.finish_reason, [(r.proposed, r.depth, r.width, r.accepted, r.emitted) for r in decoded.rounds]


@torch.no_grad()
def causal_logits(model: DenseModel, tokens: Sequence[int]) -> Tensor:
    """``[len(tokens), vocab]`` by one plain pass without a cache."""
    ids = torch.tensor([list(tokens)], device=model.embed.weight.device)
    hidden, _ = model(ids, torch.arange(len(tokens), device=ids.device)[None])
    return model.logits(hidden)[0]


def greedy(model: DenseModel, prompt: Sequence[int], count: int) -> list[int]:
    """The greedy continuation by plain passes without a cache."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(causal_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


class Oracle(Proposer):
    """Drafts the continuation that it was told, hidden among wrong siblings and wrong branches.

    ``lengths`` are the right tokens drafted round by round, again and again; ``spoiled`` False leaves the wrong ones out.
    What it was committed is kept in ``tokens`` and ``features``, its trees in ``trees``.
    """

    def __init__(self, model: DenseModel, truth: Sequence[int], lengths: Sequence[int] = (3, 0, 6, 1), spoiled: bool = True,
                 taps: tuple[int, ...] = (), seed: int = 0) -> None:  # fmt: skip
        self.truth, self.lengths, self.spoiled, self.taps = list(truth), list(lengths), spoiled, taps
        self.vocabulary, self.random = model.config.vocab_size, random.Random(seed)
        self.max_rows = 1 + 4 * (max(lengths) + 1)
        self.longest = max(lengths) + 2

    def reset(self, batch: int, capacity: int) -> None:
        self.prompt: int | None = None
        self.tokens, self.features, self.trees = [], [], []

    def commit(self, tokens: Tensor, features: Tensor, lengths: Tensor, kept: Tensor) -> None:
        self.prompt = tokens.shape[1] if self.prompt is None else self.prompt
        self.tokens += tokens[0, : kept[0]].tolist()
        self.features.append(features[0, : kept[0]])

    def propose(self, bonus: Tensor, lengths: Tensor) -> DraftTree:
        done = len(self.tokens) - self.prompt + 1
        length = self.lengths[len(self.trees) % len(self.lengths)]
        right = self.truth[done : done + length]
        tokens, parents, depths = [int(bonus)], [-1], [0]
        on_path = 0
        for depth in range(1, len(right) + 2):
            wanted = right[depth - 1] if depth <= len(right) else None
            above, right_row = on_path, None
            for token in self._siblings(self.truth[done + depth - 1 : done + depth], wanted):
                tokens.append(token)
                parents.append(above)
                depths.append(depth)
                if token == wanted:
                    right_row = len(tokens) - 1
            if right_row is None:
                break
            on_path = right_row
        tree = DraftTree(*(torch.tensor([column]) for column in (tokens, parents, depths, [0.0] * len(tokens))))
        self.trees.append(tree)
        return tree

    def _siblings(self, true: list[int], wanted: int | None) -> list[int]:
        wrong = [token for token in self.random.sample(range(self.vocabulary), 3) if token not in true]
        chosen = (wrong[:2] if self.spoiled else []) + ([] if wanted is None else [wanted])
        self.random.shuffle(chosen)
        return chosen


def summary(outputs: Mapping[str, Decoded]) -> dict[str, float]:
    """Acceptance length of each strategy, for messages."""
    return {name: sum(r.accepted + 1 for r in d.rounds) / max(1, len(d.rounds)) for name, d in outputs.items()}
