"""What the tests of vLLM share: where it is not installed they are skipped; how a child is asked; the torch engine's answers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from harness.engines.vllm.arguments import usable_cores
from harness.records import Request, Sampling

ROOT = Path(__file__).resolve().parent.parent
needs_vllm = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (docs/vllm.md)"),
]
SETTINGS = dict(
    device="cpu", dtype="float32", threads=usable_cores(), max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=4096,
    kv_cache_gib=0.5, gpu_memory_utilization=0.5, enforce_eager=True,
)  # fmt: skip


def configuration(strategy: str, **changes) -> dict:
    return yaml.safe_load((ROOT / "conf" / "strategy" / f"{strategy}.yaml").read_text()) | changes


def ask_child(tmp_path: Path, folder: Path, strategy: dict, runs: list[dict], timeout_s: float = 1200, **extra) -> dict:
    """``settings`` in ``extra`` change SETTINGS, ``replayed`` has DDTree's work replayed by a stand-in for captured graphs; all
    else are fields of vLLM's EngineArgs."""
    settings, replayed = SETTINGS | extra.pop("settings", {}), extra.pop("replayed", False)
    asked = {"folder": str(folder), "strategy": strategy, "settings": settings, "replayed": replayed, "extra": extra, "runs": runs}
    answer = tmp_path / f"answer-{strategy['name']}-{len(list(tmp_path.iterdir()))}.json"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "vllm_child.py"), str(answer)], input=json.dumps(asked), text=True,
        capture_output=True, timeout=timeout_s, env=os.environ | {"PYTHONPATH": paths}, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(answer.read_text())


def request(prompt, end=(), max_new_tokens=32, temperature=0.0, seed=0, **special) -> dict:
    sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed} | special.pop("filters", {})
    return {"prompt": list(prompt), "end": list(end), "sampling": sampling, **special}


class TorchAnswers:
    """SmolLM2 in fp32 on the torch engine, each answer decoded once."""

    def __init__(self) -> None:
        from harness.engines.torch import TorchEngine

        names = ("baseline", "dflash", "ddtree")
        model = {"name": "smollm2-135m", "path": None, "source": "harness.models.smollm2.fetch", "dtype": "float32"}
        self.engine = TorchEngine(model, {name: configuration(name) for name in names}, device="cpu")
        lines = (ROOT / "harness" / "prompts" / "quick.jsonl").read_text().splitlines()[:24]
        questions = [json.loads(line)["turns"][0] for line in lines]
        self.prompts = [tuple(self.engine.render([{"role": "user", "content": question}])) for question in questions]
        self.end = tuple(self.engine.end_tokens)
        self.decode = cache(self._decode)

    def _decode(self, strategy: str, number: int, max_new_tokens: int, temperature: float = 0.0, seed: int = 0):
        sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
        return self.engine.decode(strategy, Request(self.prompts[number], self.end, sampling, False))

    def request(self, number: int, max_new_tokens: int = 32, **special) -> dict:
        return request(self.prompts[number], self.end, max_new_tokens, **special)

    @property
    def folder(self) -> Path:
        import torch

        from harness.models.export import hugging_face_folder
        from harness.models.smollm2 import fetch

        return hugging_face_folder(fetch(), torch.float32)


def told(answer: dict) -> tuple:
    """Tokens, finish reason, and of each round accepted and emitted tokens."""
    return tuple(answer["tokens"]), answer["finish_reason"], [(r["accepted"], r["emitted"]) for r in answer["rounds"]]


def told_by_torch(decoded) -> tuple:
    return decoded.tokens, decoded.finish_reason, [(r.accepted, r.emitted) for r in decoded.rounds]
