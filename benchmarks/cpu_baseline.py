"""Autoregressive decoding on a CPU: this engine against vLLM on the same prompts, taking turns in one run.

    python -m benchmarks.cpu_baseline [--prompts 8] [--repetitions 2] [--output results/cpu/FILE.json] [KEY=VALUE ...]

Needs an environment with vLLM (docs/vllm.md). Both engines are loaded, one decodes at a time, in an order that turns round from
prompt to prompt (A B B A), so that a machine's drift hits both alike, and after a pause in which the other's threads, which wait
busily for their next task, fall asleep. Given is the geometric mean over prompts of the ratio of
decode speeds, with its 95 % interval, and each engine's median. KEY=VALUE are keys of a run; the engine's own go to vLLM
(``engine.enforce_eager=false``). The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

import harness  # noqa: F401  before anything starts threads
from benchmarks.stored import where, write

ENGINES = ("torch", "vllm")
WARM_UP = 2
PAUSE_S = 0.5


def main() -> int:
    from benchmarks.planned import plan_of
    from harness import stats, suites
    from harness.run import build_engine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--output", type=Path)
    arguments, options = parser.parse_known_args()
    own = {name: [option for option in options if name == "vllm" or not option.startswith("engine.")] for name in ENGINES}
    plans = {name: plan_of(["strategy=baseline", f"engine={name}", *own[name]]) for name in ENGINES}
    rows = suites.load(plans["torch"].suite).rows[: arguments.prompts]
    engines = {name: build_engine(plan) for name, plan in plans.items()}
    try:
        speeds = {name: {row.id: [] for row in rows} for name in ENGINES}
        for _ in range(WARM_UP):
            for name in ENGINES:
                speed(engines[name], plans[name], rows[0])
        for repetition in range(arguments.repetitions):
            for number, row in enumerate(rows):
                for name in ENGINES if (number + repetition) % 2 else reversed(ENGINES):
                    speeds[name][row.id].append(speed(engines[name], plans[name], row))
        settings = {name: dict(engine.settings()) for name, engine in engines.items()}
    finally:
        for engine in engines.values():
            getattr(engine, "close", lambda: None)()
    ratios = {row.id: [[a / b for a, b in zip(speeds["torch"][row.id], speeds["vllm"][row.id], strict=True)]] for row in rows}
    found = {
        "environment": where(),
        "options": options,
        "max_new_tokens": plans["torch"].sampling.max_new_tokens,
        "engines": settings,
        "tokens_per_s": {name: median(value for own in speeds[name].values() for value in own) for name in ENGINES},
        "torch / vllm": stats.speedup(ratios).to_json(),
        "speeds": speeds,
    }
    if arguments.output:
        write(arguments.output, found)
    print(json.dumps({key: found[key] for key in ("tokens_per_s", "torch / vllm")}))
    return 0


def speed(engine, plan, row) -> float:
    """Tokens after the first / decode time [token/s]."""
    from harness.decoding import request_of
    from harness.metrics import tpot_s

    time.sleep(PAUSE_S)
    messages = [{"role": "user", "content": row.turns[0]}]
    return 1 / tpot_s(engine.decode("baseline", request_of(engine, messages, plan.sampling, False)))


if __name__ == "__main__":
    sys.exit(main())
