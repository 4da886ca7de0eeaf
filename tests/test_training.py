"""Training for real, small: corpus, loop, resume, evaluation, checkpoint, for both drafters; and the walk against decoding."""

import json

import pytest
import torch
from hydra import compose, initialize_config_dir
from safetensors.torch import load_file

from harness.command import CONFIGURATION
from harness.engines.torch.decode import decode
from harness.engines.torch.engine import target_view
from harness.records import Request, Sampling
from harness.train import main, run
from harness.training.evaluate import acceptance_length
from harness.training.responses import write

WIDTHS = {"heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate_size": 64, "anchors": 8}
OWN = {"dflash": {"layers": 2, "block_size": 4, "taps": 1}, "mtp": {"steps": 3}}
SMALL = [
    "model=local", "model.dtype=float32", "corpus.parts=2", "corpus.part_size=12", "corpus.max_tokens=256", "corpus.answer_tokens=32",
    "corpus.greedy_share=0.2", "corpus.temperature=3.0",
    "loop.batch=4", "loop.widths=[128,256]", "loop.steps=6", "loop.save_every=3", "evaluate.suites=[quick]",
    "evaluate.limit=2", "evaluate.max_new_tokens=8", "evaluate.every=1000",
]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tmp_path_factory.mktemp("corpus")


def train(name, model, corpus, *more):
    overrides = [*SMALL, f"model.path={model.folder}", f"drafter={name}", f"suite_root={corpus}", "device=cpu"]
    overrides += [f"drafter.trainer.{key}={value}" for key, value in (WIDTHS | OWN[name]).items()]
    overrides += [f"corpus.folder={corpus / 'parts'}", *more]
    with initialize_config_dir(str(CONFIGURATION), version_base="1.3"):
        run(compose("train", overrides))


@pytest.mark.parametrize("name", ["dflash", "mtp"])
def test_a_resumed_training_equals_an_undisturbed_one(name, tiny_models, corpus, tmp_path):
    model = tiny_models["qwen3"]
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(name, model, corpus, f"output={whole}")
    train(name, model, corpus, f"output={halves}", "stop_after=3")
    after_three = load_file(halves / "model.safetensors")
    train(name, model, corpus, f"output={halves}")

    ours, wanted = load_file(halves / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all(torch.equal(ours[key], wanted[key]) for key in wanted)
    assert any(not torch.equal(ours[key], after_three[key]) for key in wanted), "the second half trained nothing"

    record = json.loads((halves / "training.json").read_text())
    assert record["steps"] == 6 and record["corpus"]["sequences"] == 24 and record["seconds"] > 0
    assert len(record["corpus"]["sha256"]) == 64 and record["losses"] and record["environment"]["device"] == "cpu"
    assert sum(n for source, n in record["corpus"]["counts"].items() if source.startswith("open/")) == 24
    assert (halves / "training.png").stat().st_size > 1000


def test_a_trained_drafter_loads_where_it_belongs(tiny_models, corpus, tmp_path):
    from harness.models.dense import build
    from harness.models.weights import load_checkpoint
    from strategies.dflash import build as build_dflash

    train("dflash", tiny_models["qwen3"], corpus, f"output={tmp_path / 'drafter'}")
    checkpoint = load_checkpoint(tiny_models["qwen3"].folder)
    target = target_view(build(checkpoint.config, checkpoint.tensors, torch.float32, "cpu"))
    assert build_dflash(target, "dflash", str(tmp_path / "drafter")).slots == 3


def test_training_lowers_the_loss(tiny_models, corpus, tmp_path):
    train("mtp", tiny_models["qwen3"], corpus, f"output={tmp_path / 'out'}", "loop.steps=60", "loop.lr=0.01")
    losses = json.loads((tmp_path / "out" / "training.json").read_text())["losses"]
    assert losses[-1][1] < losses[0][1]


@pytest.mark.parametrize("name", ["dflash", "mtp"])
def test_walking_a_continuation_equals_decoding(name, smollm2_models):
    """The trainer's masks, offsets and feedback are the proposer's: the same rounds, counted in two ways, in fp32."""
    from strategies import dflash, mtp
    from strategies.dflash.trainer import DFlashTrainer
    from strategies.mtp.trainer import MTPTrainer

    model, tokenizer = smollm2_models.ours, smollm2_models.checkpoint.tokenizer
    view = target_view(model)
    shared = {"heads": 9, "kv_heads": 3, "head_dim": 64, "intermediate_size": 1536, "rope_theta": 1e5, "anchors": 1}
    if name == "dflash":
        proposer = dflash.build(view, name, "smollm2-135m")
        trainer = DFlashTrainer(view, layers=3, block_size=8, taps=5, mask_token_id=3, gamma=4.0, **shared)
        trainer.module.load_state_dict(proposer.drafter.state_dict())
    else:
        proposer = mtp.build(view, name, "smollm2-135m", 3)
        trainer = MTPTrainer(view, steps=3, decay=1.0, rms_norm_eps=1e-5, **shared)
        trainer.module.load_state_dict(proposer.head.state_dict())
    prompts = [tokenizer.render([{"role": "user", "content": text}]) for text in ("Count to ten.", "What is 12 + 30?")]
    answers = write(model, prompts, [0.0, 0.0], 24, (2,), 0)
    walked = acceptance_length(model, trainer, [(p + a, len(p)) for p, a in zip(prompts, answers, strict=True)])
    tokens = rounds = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        (decoded,) = decode(model, proposer, [Request(tuple(prompt), (2,), Sampling(max_new_tokens=24))])
        assert list(decoded.tokens) == answer, "batched writing and decoding are the same greedy choice"
        tokens, rounds = tokens + len(answer) - 1, rounds + len(decoded.rounds)
    assert walked == pytest.approx(tokens / rounds, abs=1e-12)
    assert walked > 1.5, "the shipped drafter drafts"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("drafter=nonsense", "unknown drafter; dflash, mtp"),
        ("loop.stepz=3", "loop.stepz"),
        ("device=tpu9", "engine.device=tpu9"),
        ("model.dtype=int3", "model.dtype=int3"),
    ],
)
def test_a_mistake_is_one_line(argument, words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["harness.train", argument])
    assert main() == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert words.split(";")[0] in error[-1] and len(error) == 1


def test_help_names_the_keys(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["harness.train", "--help"])
    with pytest.raises(SystemExit, match="0"):
        main()
    out = capsys.readouterr().out
    assert all(word in out for word in ("drafter", "corpus.parts", "loop.steps", "stop_after", "suite_root", "Examples"))
