"""Autoregressive decoding: this engine against vLLM on the same machine and prompts, taking turns in one run.

    python -m benchmarks.engine_baseline [--prompts 8] [--repetitions 2] [--output results/cpu/FILE.json] [KEY=VALUE ...]

Needs an environment with vLLM (docs/vllm.md). Both engines are loaded, one decodes at a time, in an order that turns round from
prompt to prompt (A B B A), so that a machine's drift hits both alike; on a CPU after a pause in which the other's threads, which
wait busily for their next task, fall asleep. On a GPU both are on the same card, and this engine comes first: vLLM takes what it is
told (``engine.kv_cache_gib``) and asks only that ``engine.gpu_memory_utilization`` of the card be free. Given is the geometric mean over
prompts of the ratio of decode speeds, with its 95 % interval, each engine's median and its live settings. KEY=VALUE are keys of a run; one of
``engine`` goes to each engine that has it (``engine.device=cuda`` to both, ``engine.enforce_eager=false`` to vLLM). The last line on stdout
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import harness  # noqa: F401  before anything starts threads
from benchmarks.planned import configuration, first_turn, plan_of
from benchmarks.stored import where, write
from harness import stats, suites
from harness.engines.torch.device import pick_device
from harness.errors import UserError
from harness.metrics import tpot_s
from harness.run import build_engine

ENGINES = ("torch", "vllm")
WARM_UP = 2
PAUSE_S = {"cpu": 0.5}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--output", type=Path)
    asked, options = parser.parse_known_args(arguments)
    try:
        found = measure(asked.prompts, asked.repetitions, options)
    except UserError as error:
        print(f"engine_baseline: {error}", file=sys.stderr)
        return 2
    if asked.output:
        write(asked.output, found)
    print(json.dumps({key: found[key] for key in ("tokens_per_s", "torch / vllm")}))
    return 0


def measure(prompts: int, repetitions: int, options: Sequence[str]) -> dict[str, Any]:
    """Everything that is stored."""
    plans = {name: plan_of(["strategy=baseline", f"engine={name}", *own]) for name, own in shares(options).items()}
    rows = suites.load(plans["torch"].suite).rows[:prompts]
    pause_s = PAUSE_S.get(pick_device(plans["torch"].engine.device).type, 0.0)
    engines: dict = {}
    try:
        for name, plan in plans.items():
            engines[name] = build_engine(plan)
        speeds = {name: {row.id: [] for row in rows} for name in ENGINES}
        for number in range(-WARM_UP, repetitions):
            for place, row in enumerate(rows if number >= 0 else rows[:1]):
                for name in ENGINES if (place + number) % 2 else reversed(ENGINES):
                    time.sleep(pause_s)
                    tokens_per_s = speed(engines[name], plans[name], row)
                    if number >= 0:
                        speeds[name][row.id].append(tokens_per_s)
        settings = {name: dict(engine.settings()) for name, engine in engines.items()}
    finally:
        for engine in engines.values():
            getattr(engine, "close", lambda: None)()
    return {
        "environment": where(),
        "options": options,
        "suite": plans["torch"].suite.name,
        "max_new_tokens": plans["torch"].sampling.max_new_tokens,
        "engines": settings,
        "tokens_per_s": {name: median(value for own in speeds[name].values() for value in own) for name in ENGINES},
        "torch / vllm": stats.speedup(ratios(speeds)).to_json(),
        "speeds": speeds,
    }


def shares(options: Sequence[str]) -> dict[str, list[str]]:
    """Each engine's part of ``options``: keys of ``engine`` that it has, or that none has and it shall refuse; all others."""
    known = {name: set(configuration([f"engine={name}"]).engine) for name in ENGINES}

    def fits(option: str, name: str) -> bool:
        group, _, key = option.lstrip("+~").partition("=")[0].partition(".")
        return group != "engine" or key in known[name] or not any(key in keys for keys in known.values())

    return {name: [option for option in options if fits(option, name)] for name in ENGINES}


def ratios(speeds: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, list[list[float]]]:
    """Of the first engine's speed to the second's, by prompt, those that followed each other."""
    mine, theirs = (speeds[name] for name in ENGINES)
    return {row: [[a / b for a, b in zip(mine[row], theirs[row], strict=True)]] for row in mine}


def speed(engine, plan, row) -> float:
    """Tokens after the first / decode time [token/s]."""
    return 1 / tpot_s(engine.decode("baseline", first_turn(engine, plan, row, round_times=False)))


if __name__ == "__main__":
    sys.exit(main())
