"""Captured rounds say what eager rounds say, token for token in fp32; all strategies are captured or none."""

import pytest
import torch
from reference_models import generate
from tiny_decoding import proposers, tiny_config, tiny_target, told

from harness.engines.torch import TorchEngine
from harness.engines.torch.captured import CapturedPool
from harness.engines.torch.decode import decode, decode_with
from harness.errors import UserError
from harness.records import Request, Sampling
from harness.suites import SuiteConfig, load

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHIPPED = {"mtp": {"k": 3}, "dflash": {}, "ddtree": {"budget": 31}, "auto": {"budget": "auto"}}


def configuration(name: str, **options) -> dict:
    return {"_target_": f"strategies.{name}.build", "name": name, **options}


def smollm2(device: str, captured: bool | None) -> TorchEngine:
    plugins = {**dict(zip(SHIPPED, SHIPPED)), "auto": "ddtree"}
    shipped = {name: configuration(plugins[name], drafter="smollm2-135m", **options) for name, options in SHIPPED.items()}
    model = {"name": "smollm2-135m", "source": "harness.models.smollm2.fetch", "path": None, "dtype": "float32"}
    return TorchEngine(model, {"baseline": configuration("baseline"), **shipped}, device=device, captured_graphs=captured)


def test_a_cpu_captures_nothing_and_says_so(tiny_models):
    model = {"name": "tiny", "path": str(tiny_models["qwen3"].folder), "source": None, "dtype": "float32"}
    arms = {"baseline": configuration("baseline")}
    with pytest.raises(UserError, match="engine.captured_graphs=true: engine.device=cpu has none"):
        TorchEngine(model, arms, device="cpu", captured_graphs=True)
    assert TorchEngine(model, arms, device="cpu").settings()["captured_graphs"] is False


def test_one_strategy_that_cannot_be_captured_leaves_all_uncaptured(monkeypatch):
    engine = TorchEngine.__new__(TorchEngine)
    engine.device = torch.device("cuda")
    engine._proposers = {"baseline": type("P", (), {"capturable": True}), "mine": type("P", (), {"capturable": False})}
    assert engine._capture(None) is False and engine._capture(False) is False
    with pytest.raises(UserError, match="strategy mine cannot be captured"):
        engine._capture(True)
    del engine._proposers["mine"]
    assert engine._capture(None) is True and engine._capture(False) is False


@needs_gpu
@pytest.mark.parametrize("batch", [1, 2, 5, 8])
def test_captured_equals_eager_with_random_drafters(batch, tmp_path):
    torch.manual_seed(batch)
    model = tiny_target(tiny_config("qwen3", vocab_size=64, head_dim=64), seed=3).to("cuda")
    model.frequencies = model.frequencies.to("cuda")
    pool = CapturedPool(model)
    for filters in ({}, {"temperature": 1.0, "top_k": 20}):
        asked = [
            Request(tuple(torch.randint(64, (5 + 3 * i,)).tolist()), (), Sampling(max_new_tokens=10 + 7 * i, seed=i, **filters))
            for i in range(batch)
        ]
        for name, proposer in proposers(model, tmp_path).items():
            eager = [told(each) for each in decode(model, proposer, asked)]
            for _ in range(2):  # captured, then replayed
                assert [told(each) for each in decode_with(pool.of(name, proposer, asked), asked)] == eager, (name, filters)


@needs_gpu
@pytest.mark.parametrize("batch", [1, 8])
def test_smollm2_on_a_gpu_says_what_transformers_says(batch, smollm2_models):
    rows = load(SuiteConfig("quick", limit=8)).rows
    for captured in (False, True):
        engine = smollm2("cuda", captured)
        asked = [
            Request(tuple(engine.render([{"role": "user", "content": row.turns[0]}])), engine.end_tokens, Sampling(max_new_tokens=48))
            for row in rows
        ]
        wanted = [generate(smollm2_models.theirs, list(request.prompt_ids), 48, engine.end_tokens) for request in asked]
        for name in ["baseline", *SHIPPED]:
            found = [each for i in range(0, 8, batch) for each in engine.decode_batch(name, asked[i : i + batch])]
            assert [list(each.tokens) for each in found] == wanted, (name, captured)
