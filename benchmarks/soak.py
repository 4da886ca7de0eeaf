"""Memory of a process that decodes for a long time: does it stay flat after a warm-up?

    python -m benchmarks.soak --minutes 10 --output results/h200/soak.json [KEY=VALUE ...]     # again and again: pieces add up
    python -m benchmarks.soak --minutes 0.3 --tiny --output FILE                                # on a CPU: does it all work?

Every strategy of experiment=compare, DDTree also with budget auto, decodes batches of 1, 2, 4 and 8 prompts with 8 to 256 new tokens, all drawn
anew each time. The warm-up decodes the longest prompts and the shortest with the most tokens once in each strategy and batch: then
every graph is captured for the largest capacity. About once a second, between two decodes, samples are taken (bytes): ``allocated`` and
``reserved`` by torch on the device, ``used`` on the whole card as its driver says, ``resident`` memory of the process. Of each series are given the slope (least squares, a
minute), the first sample, and the largest excursion from it.

Flat is a series whose highest sample in the last quarter of a piece is not above the highest of its first quarter: not by a byte on
the device, by at most 1 % for resident memory. ``flat`` is that of allocated and reserved, on a CPU of resident memory, in every piece. KEY=VALUE
are keys of a run. The file is written anew every ten seconds, so that a piece that is killed counts too. The last line on stdout is
one JSON object. Exit status 1 when memory is not flat.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import linear_regression
from typing import Any

import harness  # noqa: F401  before anything starts threads
import psutil
import torch

from benchmarks.planned import first_turn, plan_of
from benchmarks.stored import where, write
from harness import nvidia, suites
from harness.records import Request
from harness.run import build_engine

USUAL = ("experiment=compare", "+strategy@arms.ddtree_auto=ddtree", "arms.ddtree_auto.budget=auto", "strategy.budget=63", "suite.max_turns=1")
BATCHES, LENGTHS = (1, 2, 4, 8), (8, 32, 64, 128, 256)
TINY_BATCHES, TINY_LENGTHS = (1, 2), (2, 4)
SAMPLE_S, WRITE_S = 1.0, 10.0
TOLERANCE = {"allocated": 0.0, "reserved": 0.0, "used": 0.0, "resident": 0.01}
Series = list[float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="of this piece, behind its warm-up")
    parser.add_argument("--output", type=Path, required=True, help="a file that is there already gets one more piece")
    parser.add_argument("--tiny", action="store_true", help="small batches and few tokens")
    arguments, options = parser.parse_known_args()
    before = json.loads(arguments.output.read_text())["pieces"] if arguments.output.exists() else []
    batches, lengths = (TINY_BATCHES, TINY_LENGTHS) if arguments.tiny else (BATCHES, LENGTHS)
    plan = plan_of([*USUAL, f"sampling.max_new_tokens={max(lengths)}", *options])
    engine = build_engine(plan)
    asked = [first_turn(engine, plan, row, round_times=False) for row in suites.load(plan.suite).rows]
    asked.sort(key=lambda request: -len(request.prompt_ids))
    piece: dict[str, Any] = {
        "environment": where(), "options": [*USUAL, *options], "batches": batches, "lengths": lengths, "prompts": len(asked),
        "seed": len(before), "engine": dict(engine.settings()),
    }  # fmt: skip

    begun = time.perf_counter()
    for strategy in plan.arms:
        for batch in batches:
            for ends in (asked[:batch], asked[-batch:]):
                engine.decode_batch(strategy, [with_limit(request, max(lengths)) for request in ends])
    piece["warm_up_s"] = time.perf_counter() - begun

    def store(further: Mapping[str, Any]) -> dict[str, Any]:
        found = together([*before, piece | further])
        write(arguments.output, found)
        return found

    with nvidia.driver() as gpus:
        draw = random.Random(len(before))

        def decode() -> int:
            limits = [draw.choice(lengths) for _ in range(draw.choice(batches))]
            requests = [with_limit(draw.choice(asked), limit) for limit in limits]
            return sum(len(decoded.tokens) for decoded in engine.decode_batch(draw.choice(list(plan.arms)), requests))

        found = soak(decode, lambda: memory(gpus), 60 * arguments.minutes, store)
    print(json.dumps({key: found[key] for key in ("minutes", "decodes", "tokens", "flat")} | {"series": found["pieces"][-1]["series"]}))
    return 0 if found["flat"] else 1


def soak(decode: Callable[[], int], sample: Callable[[], Mapping[str, float]], seconds: float, store: Callable[[dict], Any]) -> Any:
    """``decode`` again and again for ``seconds``; what ``store`` gave for the samples and figures at the end."""
    begun = time.perf_counter()
    samples: dict[str, Series] = {"at_s": []}
    decodes = tokens = 0
    sampled = written = -float("inf")
    while True:
        now = time.perf_counter() - begun
        ended = now >= seconds
        if ended or now - sampled >= SAMPLE_S:
            sampled = now
            samples["at_s"].append(round(now, 2))
            for name, value in sample().items():
                samples.setdefault(name, []).append(value)
        if ended or now - written >= WRITE_S:
            written = now
            told = {"minutes": now / 60, "decodes": decodes, "tokens": tokens}
            kept = store(told | {"series": figures(samples), "samples": {name: list(values) for name, values in samples.items()}})
        if ended:
            return kept
        tokens += decode()
        decodes += 1


def with_limit(request: Request, tokens: int) -> Request:
    return replace(request, sampling=replace(request.sampling, max_new_tokens=tokens))


def memory(gpus: nvidia.Gpus) -> dict[str, int]:
    """Now [byte]; of a device only where one is in use."""
    found = {"resident": psutil.Process().memory_info().rss}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found |= {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
        if (used := gpus.used_bytes()) is not None:
            found["used"] = used
    return found


def figures(samples: Mapping[str, Series]) -> dict[str, dict[str, Any]]:
    """Each series' slope a minute, first sample, largest excursion from it, and whether it is flat."""
    minutes = [second / 60 for second in samples["at_s"]]
    return {
        name: {
            "slope_a_minute": slope(minutes, values),
            "first": values[0],
            "largest_excursion": max((value - values[0] for value in values), key=abs),
            "flat": flat(values, TOLERANCE[name]),
        }
        for name, values in samples.items()
        if name != "at_s"
    }


def slope(at: Sequence[float], values: Sequence[float]) -> float:
    """Of the line of least squares; 0 for samples of one moment."""
    return linear_regression(at, values).slope if len(set(at)) > 1 else 0.0


def flat(values: Sequence[float], tolerance: float) -> bool:
    """Whether the last quarter's highest is at most the first quarter's, by a share of which it may be above it."""
    quarter = max(1, len(values) // 4)
    return max(values[-quarter:]) <= max(values[:quarter]) * (1 + tolerance)


def together(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All pieces, what they add up to, and whether memory was flat in each."""
    sums = {name: sum(piece[name] for piece in pieces) for name in ("minutes", "decodes", "tokens")}
    return {**sums, "flat": all(held(piece["series"]) for piece in pieces), "pieces": list(pieces)}


def held(series: Mapping[str, Mapping[str, Any]]) -> bool:
    """The device's series decide where there are any, else resident memory."""
    deciding = [name for name in ("allocated", "reserved") if name in series] or ["resident"]
    return all(series[name]["flat"] for name in deciding)


if __name__ == "__main__":
    sys.exit(main())
