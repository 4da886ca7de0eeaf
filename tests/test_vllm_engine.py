"""``engine=vllm`` as a run sees it: settings, failures that are recorded, refusals by name. Tiny models, real vLLM."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from tiny_decoding import loaded, run
from vllm_runs import ROOT, ask_child, configuration, needs_vllm
from vllm_tiny import write_pair

import strategies.ddtree
from harness.engines.torch.bytes_moved import cache_bytes_per_token, weight_bytes
from harness.engines.torch.engine import target_view
from harness.records import Request, Sampling

pytestmark = needs_vllm
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("tiny"), vocab_size=16)


@pytest.fixture(scope="module")
def engine(tiny):
    from harness.engines.vllm import VLLMEngine

    model = {"name": "tiny", "path": str(tiny / "target"), "source": None, "dtype": "float32"}
    arms = {"baseline": configuration("baseline"), "ddtree": configuration("ddtree", drafter=str(tiny / "drafter"), budget=6)}
    engine = VLLMEngine(model, arms, kv_cache_gib=0.1, timeout_s=120)
    yield engine
    engine.close()


def asked(seconds_worth=24):
    return Request((1, 2, 3), (), Sampling(max_new_tokens=seconds_worth))


def test_it_decodes_as_the_torch_engine(engine, tiny):
    model = loaded(tiny / "target")
    proposer = strategies.ddtree.build(target_view(model), "ddtree", str(tiny / "drafter"), 6)
    expected = run(model, proposer, [1, 2, 3], 24)
    found = engine.decode("ddtree", asked())
    assert found.tokens == expected.tokens == engine.decode("baseline", asked()).tokens
    assert [(r.proposed, r.depth, r.accepted) for r in found.rounds] == [(r.proposed, r.depth, r.accepted) for r in expected.rounds]
    assert 0 < found.ttft_s < found.rounds[0].at_s <= found.end_s
    assert engine.text(engine.render([{"role": "user", "content": "w5 w7"}])) == "w5 w7"


def test_margins_are_the_targets(engine, tiny):
    from tiny_decoding import causal_logits

    first, second = causal_logits(loaded(tiny / "target"), [1, 2, 3, 4])[-1].topk(2).values.tolist()
    assert engine.margin([1, 2, 3], [4]) == pytest.approx(first - second, abs=1e-4)


def test_settings_say_what_runs_and_what_differs(engine, tiny):
    settings = engine.settings()
    assert settings["prefix_caching"] is False and settings["dtype"] == "float32" and settings["max_num_seqs"] == 8
    assert set(settings["differs"]) >= {"speculative", "worker", "model_runner", "attention", "additional_config"}
    assert "max_num_batched_tokens" in settings and "async_scheduling" in settings
    assert settings["drafters"]["baseline"] is None and len(settings["drafters"]["ddtree"]["sha256"]) == 64
    assert all(row["state"] == "found" for row in settings["probe"]["ddtree"] if row["needed"])
    assert min(engine.peaks()) >= 0 and engine.peaks()[0] > 1 << 27, "the memory of vLLM's process"
    torch_model = loaded(tiny / "target")
    assert settings["weight_bytes"] == weight_bytes(torch_model)
    assert settings["cache_bytes_per_token"] == cache_bytes_per_token(torch_model.config, torch.float32)
    json.dumps(settings)


def test_a_process_that_dies_fails_its_cell_and_the_next_one_is_measured(engine):
    from harness.engines.vllm.client import EngineCrash

    process = engine._processes["ddtree"]
    process._process.send_signal(signal.SIGKILL)
    with pytest.raises(EngineCrash, match=r"vLLM's process for ddtree died while answering \(status -9\)"):
        engine.decode("ddtree", asked())
    assert engine.decode("ddtree", asked()).tokens == engine.decode("baseline", asked()).tokens


def test_an_answer_that_takes_too_long_ends_the_process(engine):
    from harness.engines.vllm.client import EngineCrash

    process = engine._processes["baseline"]
    process._process.send_signal(signal.SIGSTOP)
    process._timeout_s, usual = 1.0, process._timeout_s
    with pytest.raises(EngineCrash, match="for baseline gave no answer within 1 s while answering"):
        engine.decode("baseline", asked())
    process._timeout_s = usual
    assert len(engine.decode("baseline", asked()).tokens) == 24


def harness(tmp_path, *words, variables=None):
    command = [sys.executable, "-m", "harness", "engine=vllm", f"measure.root={tmp_path}", *words]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = os.environ | {"PYTHONPATH": paths} | (variables or {})
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=variables, cwd=ROOT)


def test_a_run_leaves_the_same_folder_as_on_the_torch_engine(tiny, tmp_path):
    words = ["model=local", f"model.path={tiny / 'target'}", "model.dtype=float32", f"strategy.drafter={tiny / 'drafter'}"]
    done = harness(tmp_path, *words, "suite.limit=2", "sampling.max_new_tokens=16", "engine.kv_cache_gib=0.1")
    assert done.returncode == 0, done.stderr[-2000:]
    (folder,) = tmp_path.iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["losslessness"]["strategies"]["ddtree"]["identical"] == 1.0 or "all" in (folder / "table.md").read_text()
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["engine"]["vllm"] and environment["engine"]["probe"]["ddtree"]
    cells = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    assert len(cells) == 4 and all(cell["decoded"] for cell in cells)


REFUSED = [
    (dict(enable_prefix_caching=True), "prefix caching; set enable_prefix_caching to false"),
    (dict(additional_config={"ddtree": {"budget": 99}}), "the node budget is a whole number from 1 to"),
]


@pytest.mark.parametrize("change, words", REFUSED)
def test_what_is_not_covered_is_refused_by_name(tiny, tmp_path, change, words):
    with pytest.raises(AssertionError) as caught:
        ask_child(tmp_path, tiny / "target", configuration("ddtree", drafter=str(tiny / "drafter"), budget=6), [],
                  **({"settings": {"max_model_len": 128}} | change))  # fmt: skip
    assert words in str(caught.value)


def test_a_seam_that_moved_is_refused_by_name(tiny, tmp_path):
    """A vLLM whose runner has another ``_sample``: the plugin says which seam, and the run ends before it begins."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Patch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'strategies.ddtree.vllm_plugin.worker':\n"
        "            from vllm.v1.worker.gpu_model_runner import GPUModelRunner\n"
        "            GPUModelRunner._sample = lambda self, logits, metadata, extra=None: None\n"
        "sys.meta_path.insert(0, Patch())\n"
    )
    words = ["model=local", f"model.path={tiny / 'target'}", "model.dtype=float32", f"strategy.drafter={tiny / 'drafter'}"]
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = harness(tmp_path / "runs", *words, "suite.limit=1", "engine.kv_cache_gib=0.1", variables={"PYTHONPATH": paths})
    assert done.returncode == 2
    assert "GPUModelRunner._sample takes (logits, metadata, extra) where (logits, spec_decode_metadata) is known" in done.stderr


@pytest.mark.parametrize("strategy, status", [("ddtree", 0), ("dflash", 0), ("baseline", 0)])
def test_the_probe_says_that_it_can_run(strategy, status):
    command = [sys.executable, "-m", "harness.probe", "engine=vllm", f"strategy={strategy}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT)
    assert done.returncode == status
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["can_run"] and any(row["what"] == "DFlash proposer" and row["state"] == "found" for row in found["rows"])
