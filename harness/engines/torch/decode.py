"""The one decode loop: prefill, then rounds of propose, verify, accept, commit, for every strategy alike."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.engines.torch.round_clock import RoundClock
from harness.models.dense import DenseModel
from harness.records import Decoded, Request, Round, Sampling
from kernels import accept, ancestor_mask, greedy_choice, sampled_choice, visible_rows
from kernels.acceptance import Choice
from strategies.base import DraftTree, Proposer


@dataclass
class Output:
    """Tokens delivered so far, and when to stop."""

    tokens: list[int]
    limit: int
    limit_reason: str
    end_tokens: frozenset[int]
    finish_reason: str | None = None

    def deliver(self, tokens: list[int]) -> int:
        """Append up to the first end token (kept) or the limit; returns how many were delivered."""
        before = len(self.tokens)
        for token in tokens:
            self.tokens.append(token)
            if token in self.end_tokens:
                self.finish_reason = "stop"
            elif len(self.tokens) == self.limit:
                self.finish_reason = self.limit_reason
            if self.finish_reason:
                break
        return len(self.tokens) - before


@torch.inference_mode()
def decode(model: DenseModel, proposer: Proposer, request: Request) -> Decoded:
    """Decode one request. The prompt must leave room for a token within the model's context."""
    started = time.perf_counter()
    device = model.embed.weight.device
    prompt = torch.tensor([request.prompt_ids], device=device)
    length, room = prompt.shape[1], model.config.context_length - prompt.shape[1]
    wanted = request.sampling.max_new_tokens
    limit, reason = (wanted, "length") if wanted <= room else (room, "context")
    output = Output([], limit, reason, frozenset(request.end_tokens))
    uniforms = _uniforms(request.sampling, limit, device)

    capacity = length + limit + proposer.max_rows
    cache = model.new_cache(1, capacity)
    proposer.reset(1, capacity)
    positions = torch.arange(length, device=device)[None]
    hidden, features = model(prompt, positions, cache, taps=proposer.taps)
    choose = _choice(model.logits(hidden[:, -1:]), uniforms[:, :1], request.sampling)
    cache.keep(positions)
    proposer.commit(prompt, features)
    bonus = choose(0, 0, 0)
    output.deliver([bonus])
    ttft = time.perf_counter() - started

    clock = RoundClock(device, request.round_times)
    proposer.drafting_done = lambda: clock.mark("draft")
    rounds: list[Round] = []
    try:
        while output.finish_reason is None:
            bonus, this_round = _round(model, proposer, cache, bonus, output, uniforms, request.sampling, started, clock)
            rounds.append(this_round)
    finally:
        del proposer.drafting_done
    end = rounds[-1].at_s if rounds else ttft
    if request.round_times:
        rounds = [replace(r, **phases) for r, phases in zip(rounds, clock.seconds(), strict=True)]
    return Decoded(tuple(output.tokens), output.finish_reason, ttft, end, tuple(rounds))


def _round(model, proposer, cache, bonus, output, uniforms, sampling, started, clock) -> tuple[int, Round]:
    """Propose, verify, accept, commit. Returns the next bonus token and the round's record, its phases still untimed."""
    device = model.embed.weight.device
    clock.begin()
    emitted_before = len(output.tokens)
    # The target's own token follows the accepted ones, so a useful tree is one shallower than the room that is left.
    tree = proposer.propose(torch.tensor([bonus], device=device), output.limit - emitted_before - 1)
    clock.mark("build")

    hidden, features = _verify(model, proposer.taps, cache, tree)
    depth = int(tree.depths.max())
    choose = _choice(model.logits(hidden), uniforms[:, emitted_before : emitted_before + depth + 1], sampling)
    paths, bonuses = accept(tree.tokens, tree.parents, choose)
    clock.mark("verify")

    path = torch.tensor(paths, device=device)
    cache.keep(path)
    kept = tree.tokens.gather(1, path)
    proposer.commit(kept, features.gather(1, path[..., None].expand(-1, -1, features.shape[-1])))
    emitted = output.deliver(kept[0, 1:].tolist() + bonuses)
    at_s = time.perf_counter() - started
    clock.mark("commit")
    return bonuses[0], Round(
        proposed=tree.rows - 1,
        depth=depth,
        width=int(torch.bincount(tree.depths[0]).max()) if tree.rows > 1 else 0,
        accepted=len(paths[0]) - 1,
        emitted=emitted,
        at_s=at_s,
    )


def _verify(model: DenseModel, taps: tuple[int, ...], cache, tree: DraftTree) -> tuple[Tensor, Tensor]:
    """One target pass over all rows of the tree, each at its depth's position, seeing context, ancestors and itself."""
    visible = None
    if tree.rows > 1:
        visible = visible_rows(ancestor_mask(tree.parents), cache.length)
    return model(tree.tokens, cache.length + tree.depths, cache, visible, taps)


def _uniforms(sampling: Sampling, count: int, device) -> Tensor:
    """One number in [0, 1) for each output position, ``[1, count]`` fp64: a function of the seed alone."""
    generator = torch.Generator().manual_seed(sampling.seed)
    return torch.rand(1, count, generator=generator, dtype=torch.float64).to(device)


def _choice(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> Choice:
    if sampling.temperature == 0:
        return greedy_choice(logits)
    return sampled_choice(logits, uniforms, sampling.temperature, sampling.top_k, sampling.top_p)
