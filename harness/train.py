"""``python -m harness.train drafter=dflash``: train a drafter for a target, from prompts to a checkpoint with its record."""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import fields
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from harness.command import command


def main() -> int:
    """Run the command line; the exit status is what is returned."""
    kept = "interrupted: corpus parts and saved steps stay; the same command goes on from there"
    return command("harness.train", "train", run, kept)


def run(config: DictConfig) -> int:
    """Corpus, training, evaluation, checkpoint. Each stage finds what is finished and goes on from there."""
    import torch
    from hydra.utils import instantiate

    from harness.engines.torch.device import pick_device, pick_dtype
    from harness.engines.torch.engine import target_view
    from harness.models.dense import build
    from harness.models.weights import load_checkpoint, resolve, sha256
    from harness.training import corpus as corpora
    from harness.training.batches import Batches
    from harness.training.evaluate import acceptance_length, continuations
    from harness.training.loop import train
    from strategies.checkpoint import RECORD, WEIGHTS, start_from

    device = pick_device(config.device)
    checkpoint = load_checkpoint(resolve(config.model))
    model = build(checkpoint.config, checkpoint.tensors, pick_dtype(config.model.dtype, device), device)
    suites = _suites(config, limit=None)
    questions = _questions(config)

    corpus_config = _fill(corpora.CorpusConfig, config.corpus)
    folder = Path(config.corpus.folder)
    only = range(*config.corpus.only) if config.corpus.only else None
    say = lambda done, of: print(f"corpus: part {done} of {of}", file=sys.stderr, flush=True)  # noqa: E731
    corpora.build(model, checkpoint.tokenizer, corpus_config, questions, suites, folder, say, only)
    if config.stage == "corpus":
        return 0

    sequences, corpus_record = corpora.load(folder, corpus_config)
    torch.manual_seed(config.loop.seed)  # of the drafter's first weights
    trainer = instantiate(config.drafter.trainer, target=target_view(model))
    if config.init:
        start_from(trainer.module, Path(config.init))
    loop_config = _loop_config(config, device)
    batches = Batches(sequences, loop_config.batch, loop_config.widths, loop_config.seed, device)
    walks = {
        s.name: continuations(model, checkpoint.tokenizer, s, config.evaluate.max_new_tokens)
        for s in _suites(config, limit=config.evaluate.limit, names=config.evaluate.suites)
    }
    output = Path(config.output)
    curve: list[dict] = []
    begun = time.perf_counter()

    def report(step: int, loss: float) -> None:
        seconds = time.perf_counter() - begun
        print(f"step {step} of {loop_config.steps}: loss {loss:.4f}, {seconds:.0f} s", file=sys.stderr, flush=True)
        if step % config.evaluate.every == 0:
            curve.append({"step": step, **{n: round(acceptance_length(model, trainer, w), 4) for n, w in walks.items()}})
            print(f"  acceptance {curve[-1]}", file=sys.stderr, flush=True)

    history = train(model, trainer, batches, loop_config, output / "state", report, config.stop_after)
    final = {name: round(acceptance_length(model, trainer, walk), 4) for name, walk in walks.items()}
    trainer.save(output)
    record = {
        "weights_sha256": sha256([output / WEIGHTS]),
        "target": {"name": config.model.name, "sha256": checkpoint.checksum, "dtype": str(model.embed.weight.dtype)},
        "drafter": OmegaConf.to_container(config.drafter, resolve=True),
        "init": _init_record(config.init),
        "parameters": sum(p.numel() for p in trainer.module.parameters()),
        "corpus": {**OmegaConf.to_container(config.corpus, resolve=True), **corpus_record, "folder": None},
        "loop": OmegaConf.to_container(config.loop, resolve=True),
        "steps": history["step"],
        "seconds": round(history["seconds"], 1),
        "sequences_seen": history["step"] * loop_config.batch,
        "acceptance_length": {"chain, greedy continuation, pooled, committed": final, "limit": config.evaluate.limit,
                              "max_new_tokens": config.evaluate.max_new_tokens},
        "losses": history["losses"],
        "acceptance_curve": curve,
        "environment": _environment(device),
    }
    (output / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    _plot(record, output / "training.png")
    print(json.dumps({"output": str(output), "acceptance_length": final, "steps": history["step"]}))
    return 0


def _fill(cls, config: DictConfig):
    """The dataclass ``cls`` from the keys of ``config`` that it has."""
    values = OmegaConf.to_container(config, resolve=True)
    return cls(**{f.name: values[f.name] for f in fields(cls)})


def _loop_config(config: DictConfig, device):
    from harness.training.loop import LoopConfig

    filled = _fill(LoopConfig, config.loop)
    compiled = device.type == "cuda" if filled.compile is None else filled.compile
    return LoopConfig(**{**vars(filled), "widths": tuple(filled.widths), "compile": compiled})


def _suites(config: DictConfig, limit: int | None, names=None) -> list:
    """The suites that are at hand under ``suite_root`` (and ``quick``): for overlap checks and for evaluation."""
    from harness.errors import UserError
    from harness.suites import SUITES, SuiteConfig, load

    found = []
    for name in names or SUITES:
        try:
            found.append(load(SuiteConfig(name, limit=limit, root=config.suite_root)))
        except UserError as error:
            print(f"harness.train: without suite {name}: {error}", file=sys.stderr)
    return found


def _questions(config: DictConfig) -> list:
    from harness.cache_folder import cache_folder
    from harness.errors import UserError
    from harness.training.prompts import gsm8k_train, mbpp_outside_evaluation

    root = Path(config.suite_root) if config.suite_root else cache_folder() / "suites"
    questions = []
    for read, name in ((gsm8k_train, "gsm8k_train.jsonl"), (mbpp_outside_evaluation, "mbpp_sanitized.json")):
        try:
            questions += read(root / name)
        except UserError as error:
            print(f"harness.train: without {name}: {error}", file=sys.stderr)
    return questions


def _init_record(init: str | None) -> dict | None:
    """The whole record of the training that this one started from."""
    path = Path(init) / "training.json" if init else None
    return json.loads(path.read_text()) if path and path.exists() else None


def _environment(device) -> dict:
    import torch

    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {"python": platform.python_version(), "torch": torch.__version__, "device": str(device), "gpu": gpu}


def _plot(record: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, loss_axis = pyplot.subplots(figsize=(7, 4))
    loss_axis.plot(*zip(*record["losses"]), color="tab:gray", label="loss")
    loss_axis.set_xlabel("step")
    loss_axis.set_ylabel("loss (nats per token, weighted)")
    if record["acceptance_curve"]:
        axis = loss_axis.twinx()
        steps = [point["step"] for point in record["acceptance_curve"]]
        for name in (n for n in record["acceptance_curve"][0] if n != "step"):
            axis.plot(steps, [point[name] for point in record["acceptance_curve"]], marker="o", label=name)
        axis.set_ylabel("acceptance length (tokens per round)")
        axis.legend(loc="center right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
