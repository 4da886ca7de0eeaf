"""Hand-made runs for tests of the report: two strategies, a few prompts, no model and no clock behind them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from omegaconf import OmegaConf

from harness.losslessness import Setting, losslessness
from harness.records import Decoded, Round
from harness.store import CONTROL, Cell, Failure, Key, Store
from harness.summary import prompts_sha256

KINDS = ("chat", "code", "maths")


def config(budget: int = 16, temperature: float = 0.0, model: str = "m", suite: str = "quick", baseline="baseline", batch: int = 1):
    return {
        "strategy": {"name": "ddtree", "_target_": "strategies.ddtree.build", "budget": budget},
        "arms": {"baseline": {"name": "baseline", "_target_": "strategies.baseline.build"}},
        "engine": {"name": "torch"},
        "model": {"name": model, "path": None},
        "suite": {"name": suite, "limit": None},
        "sampling": {"temperature": temperature, "max_new_tokens": 9},
        "measure": {"baseline": baseline, "seed": 0, "repetitions": 1, "round_times": True, "batch": batch},
    }


def environment(dtype: str = "bfloat16"):
    return {
        "command": "python -m harness strategy.budget=16",
        "git": {"commit": "0123456789abcdef", "dirty": False},
        "cpu": {"model": "Example CPU", "usable_cores": 2, "load_average": [0.1, 0.1, 0.1]},
        "gpus": [],
        "memory_bytes": 2**33,
        "packages": {"torch": "2"},
        "engine": {"dtype": dtype, "cache": {"blocks": 3}},
        "suite": {"name": "quick", "prompts": 8},
        "seeds": {"measure": 0},
        "variables": {"HARNESS_CACHE": "/somewhere/private", "OMP_NUM_THREADS": "2"},
    }


def decoded(tokens: list[int], a_round: int, round_s: float, phases: bool = True) -> Decoded:
    rounds, left, now = [], len(tokens) - 1, 0.1
    while left > 0:
        now += round_s
        times = {"draft_s": round_s / 4, "build_s": 0.0, "verify_s": round_s / 2, "commit_s": round_s / 8} if phases else {}
        drafted = a_round - 1
        rounds.append(Round(2 * drafted, drafted, 2 * bool(drafted), drafted, min(a_round, left), now, **times))
        left -= a_round
    return Decoded(tuple(tokens), "length", 0.1, now, tuple(rounds))


def save(
    folder: Path, prompts: int = 8, differs: bool = False, failed: bool = False, ended: bool = True, phases: bool = True,
    dtype: str = "bfloat16", seen: bool = True, **settings,
) -> Path:  # fmt: skip
    """A run's folder. ``differs``: ddtree's first answer parts at token 4, where the margin was 0.25. With ``batch`` requests
    at once ddtree's rounds take 1 + 0.6 (batch - 1) times as long. Not ``seen``: as of a server that sends text alone and
    counts no rounds."""
    made = config(**settings)
    batch = made["measure"]["batch"]
    folder.mkdir(parents=True)
    text = OmegaConf.to_yaml(OmegaConf.create(made))
    (folder / "config.yaml").write_text(text)
    store = Store(folder)
    store.write_json("environment.json", {**environment(dtype), "config_sha256": sha256(text.encode()).hexdigest()})
    for number in range(prompts):
        for strategy, a_round, round_s in (("baseline", 1, 0.02), ("ddtree", 4, (0.03 + 0.001 * number) * (0.4 + 0.6 * batch))):
            key = Key(f"q/{number}", 0, strategy, 0)
            tokens = [(7 * number + i) % 50 for i in range(9)]
            if differs and number == 0 and strategy == "ddtree":
                tokens[4] = 99
            answer = decoded(tokens, a_round, round_s, phases)
            if not seen:
                answer = replace(answer, tokens=(), rounds=(), output_tokens=9, text=" ".join(map(str, tokens)))
            together = {"batch": number // batch, "batch_size": min(batch, prompts - number // batch * batch)} if batch > 1 else {}
            store.append(Cell(key, KINDS[number % 3], number, 5, f"sha{number}", answer, **together))
    if failed:
        store.append(Cell(Key("q/last", 0, "ddtree", 0), "chat", 99, failure=Failure("RuntimeError", "out of <memory>")))
    if ended:
        cells = list(store.cells())
        lossless = None
        if made["measure"]["baseline"]:
            setting = Setting("baseline", ["baseline", "ddtree"], dtype, made["sampling"]["temperature"] == 0, 1)
            margins = {Key("q/0", 0, "ddtree", 0): 0.25}
            lossless = losslessness(cells, list(store.cells(CONTROL)), setting, margins).to_json()
        counted = {name: {"cells": count} for name, count in Counter(cell.key.strategy for cell in cells).items()}
        about = {"interrupted": False, "prompts_sha256": prompts_sha256(cells), "losslessness": lossless}
        store.write_json("summary.json", {**about, "strategies": counted})
    return folder
