"""What drafters are trained on: questions, and the answers that the target itself writes to them.

A corpus is a folder of parts; each part is written whole, so an interrupted run goes on with the next one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.errors import UserError
from harness.models.dense import DenseModel
from harness.models.tokenizer import ChatTokenizer
from harness.suites import Suite
from harness.training.overlap import without_overlap
from harness.training.prompts import WEIGHTS, Prompt, mix
from harness.training.responses import write

QUESTION_TOKENS = 160
QUESTION_TEMPERATURE = 0.8
GAP = "\ue000"


@dataclass(frozen=True)
class CorpusConfig:
    """``parts`` of ``part_size`` sequences of at most ``max_tokens`` tokens, answers of at most ``answer_tokens``.

    ``greedy_share`` of the answers are greedy, the others sampled at ``temperature``. ``weights`` says how often each
    source of questions is drawn; None: as ``harness.training.prompts.WEIGHTS``.
    """

    parts: int
    part_size: int
    max_tokens: int
    answer_tokens: int
    greedy_share: float
    temperature: float
    seed: int
    weights: Mapping[str, float] | None


@dataclass(frozen=True)
class Sequences:
    """``tokens`` int32 ``[n, max_tokens]`` padded on the right with 0; an answer spans ``starts`` to ``lengths``."""

    tokens: Tensor
    starts: Tensor
    lengths: Tensor


def build(
    model: DenseModel,
    tokenizer: ChatTokenizer,
    config: CorpusConfig,
    questions: Sequence[Prompt],
    suites: Sequence[Suite],
    folder: Path,
    progress: Callable[[int, int], None],
    only: range | None = None,
) -> None:
    """Write the parts that ``folder`` lacks (of ``only``, where several processes share the work)."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in only or range(config.parts):
        path = folder / f"part-{part:04d}.safetensors"
        if not path.exists():
            sequences, counts = _write_part(model, tokenizer, config, questions, suites, config.seed + 7919 * part)
            path.with_suffix(".json").write_text(json.dumps(counts) + "\n")
            unfinished = path.with_suffix(".unfinished")
            save_file({name: getattr(sequences, name) for name in ("tokens", "starts", "lengths")}, unfinished)
            unfinished.rename(path)
        progress(part + 1, config.parts)


def load(folder: Path, config: CorpusConfig) -> tuple[Sequences, dict]:
    """All sequences of a corpus, and its record: counts by source and the sha256 over its parts."""
    digest, parts, totals = hashlib.sha256(), [], {}
    for part in range(config.parts):
        path = folder / f"part-{part:04d}.safetensors"
        if not path.exists():
            raise UserError(f"corpus part {path} is missing; run the command again to write it")
        digest.update(path.read_bytes())
        parts.append(load_file(path))
        for name, count in json.loads(path.with_suffix(".json").read_text()).items():
            totals[name] = totals.get(name, 0) + count
    sequences = Sequences(*(torch.cat([p[name] for p in parts]) for name in ("tokens", "starts", "lengths")))
    answer_tokens = int((sequences.lengths - sequences.starts).sum())
    record = {"sequences": len(sequences.tokens), "answer_tokens_written": answer_tokens, "sha256": digest.hexdigest(), "counts": totals}
    return sequences, record


def _write_part(model, tokenizer, config: CorpusConfig, questions, suites, seed: int) -> tuple[Sequences, dict]:
    # Some questions are dropped, so more are drawn than a part holds.
    prompts = list(mix(seed, int(config.part_size * 1.3) + 8, questions, config.weights or WEIGHTS))
    ready = [p for p in prompts if p.complete]
    opened = _complete(model, tokenizer, [p for p in prompts if not p.complete], seed)
    written = len(opened)
    clean = without_overlap([p.text for p in opened], suites) if suites else [p.text for p in opened]
    kept_texts = set(clean)
    opened = [p for p in {p.text: p for p in opened if p.text in kept_texts}.values()]
    everything = [(p.source, tokenizer.render([{"role": "user", "content": p.text}])) for p in (*ready, *opened)]
    everything = [(source, ids) for source, ids in everything if len(ids) <= config.max_tokens - 32]
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed)).tolist()[: config.part_size]
    chosen = [everything[i] for i in order]
    ids = [ids for _, ids in chosen]
    greedy = [i < config.greedy_share * len(ids) for i in range(len(ids))]
    heat = [0.0 if g else config.temperature for g in greedy]
    answers = write(model, ids, heat, config.answer_tokens, model.config.end_tokens, seed)

    tokens = torch.zeros(len(ids), config.max_tokens, dtype=torch.int32)
    lengths = []
    for row, (prompt, answer) in enumerate(zip(ids, answers, strict=True)):
        sequence = (prompt + answer)[: config.max_tokens]
        tokens[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.int32)
        lengths.append(len(sequence))
    starts = torch.tensor([len(prompt) for prompt in ids], dtype=torch.int32)
    counts = {"self_written": written, "self_written_dropped": written - len(opened), "greedy_answers": sum(greedy)}
    for source, _ in chosen:
        counts[source] = counts.get(source, 0) + 1
    return Sequences(tokens, starts, torch.tensor(lengths, dtype=torch.int32)), counts


def _complete(model: DenseModel, tokenizer: ChatTokenizer, opened: list[Prompt], seed: int) -> list[Prompt]:
    """The target finishes each opening inside the open user turn. Questions that do not end are dropped."""
    if not opened:
        return []
    before, _, _ = tokenizer.render_text([{"role": "user", "content": GAP}]).partition(GAP)
    starts = [tokenizer.encode(before + p.text) for p in opened]
    heat = [QUESTION_TEMPERATURE] * len(opened)
    written = write(model, starts, heat, QUESTION_TOKENS, model.config.end_tokens, seed + 1)
    finished = []
    for prompt, ids in zip(opened, written, strict=True):
        if ids[-1] in model.config.end_tokens:
            text = (prompt.text + tokenizer.decode(ids)).strip()
            if text:
                finished.append(Prompt(prompt.source, prompt.category, text, True))
    return finished
