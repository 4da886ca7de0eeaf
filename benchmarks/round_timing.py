"""What timing the phases of every round costs.

    python benchmarks/round_timing.py --output results/round_timing.json [KEY=VALUE ...]

Two answers. ``clock``: the marks of one round made alone, many thousand times, against the mean round of the same run: the
cost itself, steady even on a busy machine. ``runs``: every prompt decoded with and without round times, in an order that
turns round from prompt to prompt (A B B A), and the geometric mean of the ratio of decode times, with its 95 % interval:
the cost as a run feels it, which needs an idle machine and many prompts to show less than 1 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
DEFAULT = ["suite.limit=16", "sampling.max_new_tokens=64"]
LOOPS = 2000


def main() -> int:
    from benchmarks.planned import first_turn, plan_of
    from benchmarks.stored import write
    from harness import stats, suites
    from harness.metrics import decode_s, mean_round
    from harness.run import build_engine

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument("--repetitions", type=int, default=3)
    arguments, options = parser.parse_known_args()
    plan = plan_of(options or DEFAULT)
    engine = build_engine(plan)
    rows = suites.load(plan.suite).rows
    found = {"options": options or DEFAULT, "device": str(engine.device), "strategies": {}}
    for strategy in plan.arms:
        ratios: dict[str, list[list[float]]] = {}
        timed = []
        for number, row in enumerate(rows):
            requests = {wish: first_turn(engine, plan, row, round_times=wish) for wish in (True, False)}
            engine.decode(strategy, requests[True])  # warm
            ratios[row.id] = [[]]
            for repetition in range(arguments.repetitions):
                order = (True, False) if (number + repetition) % 2 else (False, True)
                decoded = {wish: engine.decode(strategy, requests[wish]) for wish in order}
                timed.append(decoded[True])
                if decoded[True].rounds:
                    ratios[row.id][0].append(decode_s(decoded[True]) / decode_s(decoded[False]))
        slower = stats.speedup({p: turns for p, turns in ratios.items() if turns[0]})
        clock_s, round_s = clock_a_round_s(engine.device), mean_round(timed)["chunk_s"]
        clock = {"clock_s_a_round": clock_s, "round_s": round_s, "share": clock_s / round_s}
        found["strategies"][strategy] = {"clock": clock, "runs": {"time_with / time_without": slower.to_json()}}
        print(strategy, json.dumps(found["strategies"][strategy]), flush=True)
    if arguments.output:
        write(arguments.output, found)
    return 0


def clock_a_round_s(device) -> float:
    """Host seconds that the marks of one round take, the median of many; their resolution after the request included."""
    from harness.engines.torch.round_clock import PHASES, RoundClock

    seconds = []
    for _ in range(20):
        begun = time.perf_counter()
        clock = RoundClock(device, wanted=True, most=LOOPS)
        clock.reset()
        for _ in range(LOOPS // 20):
            clock.begin()
            for phase in PHASES:
                clock.mark(phase)
        clock.seconds()
        seconds.append((time.perf_counter() - begun) / (LOOPS // 20))
    return float(np.median(seconds))


if __name__ == "__main__":
    sys.exit(main())
