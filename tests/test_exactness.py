"""Greedy decoding in fp32: every strategy says exactly what Transformers' ``generate`` says."""

import random

import pytest
from reference_models import generate
from tiny_decoding import Oracle, loaded, proposers, run

import strategies.ddtree
import strategies.dflash
import strategies.mtp
from harness.engines.torch.engine import target_view
from harness.suites import SuiteConfig, load
from strategies.dflash.checkpoint import SHIPPED as DFLASH_DRAFTERS
from strategies.mtp.checkpoint import SHIPPED as MTP_HEADS

pytestmark = pytest.mark.timeout(120)  # a loop that misses its end would never fail

FAMILIES = ["llama", "qwen3"]
SHIPPED = "smollm2-135m"


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(300) for _ in range(source.randint(1, 30))] for _ in range(count)]


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request, tiny_models):
    """Our model and Transformers' answers of 40 tokens to 24 prompts."""
    saved = tiny_models[request.param]
    asked = prompts(24)
    return loaded(saved.folder), [(prompt, generate(saved.model, prompt, 40)) for prompt in asked]


@pytest.mark.parametrize("k, budget, block", [(1, 1, 2), (3, 12, 5), (7, 64, 8), (16, 300, 3)])
def test_every_strategy_with_random_drafters(tiny, tmp_path, k, budget, block):
    model, answers = tiny
    for name, proposer in proposers(model, tmp_path, k=k, budget=budget, block_size=block).items():
        for prompt, answer in answers[: 6 if budget < 300 else 2]:
            assert list(run(model, proposer, prompt, 40).tokens) == answer, (name, prompt)


@pytest.mark.parametrize("lengths", [(3, 0, 6, 1), (15,), (1,), (0, 2)])
@pytest.mark.parametrize("spoiled", [False, True])
def test_a_drafter_that_is_often_right(tiny, lengths, spoiled):
    """Random drafters are seldom accepted; this one is, off the first rows of its trees, whole blocks at a time."""
    model, answers = tiny
    for seed, (prompt, answer) in enumerate(answers):
        oracle = Oracle(model, answer, lengths, spoiled, seed=seed)
        decoded = run(model, oracle, prompt, 40)
        assert list(decoded.tokens) == answer
        whole = decoded.rounds[:-1]  # the last one meets the limit
        assert [r.accepted for r in whole] == [lengths[i % len(lengths)] for i in range(len(whole))]
    assert not spoiled or any(r.width == 3 for r in decoded.rounds) or max(lengths) == 1


def test_end_tokens_inside_accepted_blocks(tiny, tiny_models):
    """Transformers with the same end tokens stops at the same place, the end token kept."""
    model, answers = tiny
    theirs = tiny_models[model.config.family].model
    for prompt, answer in answers[:8]:
        ends = [answer[9], answer[20], 319]
        wanted = generate(theirs, prompt, 40, ends)
        for lengths in [(15,), (4,), (0,)]:
            decoded = run(model, Oracle(model, answer, lengths), prompt, 40, ends)
            assert list(decoded.tokens) == wanted and decoded.finish_reason == "stop"


def smollm2_proposers(model, folder):
    """All four strategies with the shipped drafters, or with random ones while there are none."""
    found, view = proposers(model, folder), target_view(model)
    if (DFLASH_DRAFTERS / SHIPPED).is_dir():
        found["dflash"] = strategies.dflash.build(view, "dflash", SHIPPED)
        found["ddtree"] = strategies.ddtree.build(view, "ddtree", SHIPPED, 16)
    if (MTP_HEADS / SHIPPED).is_dir():
        found["mtp"] = strategies.mtp.build(view, "mtp", SHIPPED, 3)
    return found


def test_smollm2(smollm2_models, tmp_path):
    """Part of what benchmarks/exactness.py does with 100 prompts."""
    model, tokenizer = smollm2_models.ours, smollm2_models.checkpoint.tokenizer
    ends = model.config.end_tokens
    arms = smollm2_proposers(model, tmp_path)
    for row in load(SuiteConfig("quick", limit=2)).rows:
        prompt = tokenizer.render([{"role": "user", "content": row.turns[0]}])
        answer = generate(smollm2_models.theirs, prompt, 32, ends)
        oracle = Oracle(model, answer, (3, 0, 6, 1))
        for name, proposer in {**arms, "oracle": oracle}.items():
            assert list(run(model, proposer, prompt, 32, ends).tokens) == answer, (name, row.id)
