"""What each microsecond of a captured round goes to, kernel by kernel.

    python -m benchmarks.round_profile [--shape qwen3-8b] [--context 1024] [--batch 1] [--budgets 63] [--rounds 20] [--output FILE]

Weights are random, as in ``benchmarks.round_cost``. Kernels start beside the one before them and wait, so that the times from
their begins to their ends overlap; counted here is what each adds: from the end of all that came before it to its own end.
``idle_us`` is the time in which nothing runs. The two together are a round. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import harness  # noqa: F401  before anything starts threads
from benchmarks.round_cost import SHAPES, RandomTensors, begun_rounds, proposers
from benchmarks.stored import where, write
from benchmarks.vllm_speed.trace import DEVICE
from harness.engines.torch.device import pick_device, pick_dtype
from harness.models.dense import build
from kernels import pack


def share_out(events: Iterable[Mapping[str, Any]], rounds: int) -> dict[str, Any]:
    """Times a round of the device's operations among a trace's ``traceEvents``, by name and grid, the most time first [µs]."""
    operations = sorted((e for e in events if e.get("ph") == "X" and e.get("cat") in DEVICE), key=lambda e: (e["ts"], e["dur"]))
    if not operations:
        raise ValueError("the trace holds no operation of a device")
    added, times = defaultdict(float), defaultdict(int)
    idle, reached = 0.0, operations[0]["ts"]
    for operation in operations:
        idle += max(0.0, operation["ts"] - reached)
        reached = max(reached, operation["ts"])
        end = operation["ts"] + operation["dur"]
        name = operation["name"], "x".join(map(str, operation.get("args", {}).get("grid", ())))
        added[name] += max(0.0, end - reached)
        times[name] += 1
        reached = max(reached, end)
    kernels = [
        {"kernel": name[0][:160], "grid": name[1], "us": us / rounds, "times": times[name] / rounds}
        for name, us in sorted(added.items(), key=lambda item: -item[1])
    ]
    return {"busy_us": sum(added.values()) / rounds, "idle_us": idle / rounds, "operations": len(operations) / rounds, "kernels": kernels}


@torch.inference_mode()
def profiled(rounds, count: int) -> dict[str, Any]:
    for _ in range(3):
        rounds.step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(count):
            rounds.step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        return share_out(json.loads(trace.read_text())["traceEvents"], count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--budgets", default="63")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")

    device = pick_device("auto")
    dtype = pick_dtype("auto", device)
    config, sizes = SHAPES[arguments.shape]
    model = build(config, RandomTensors(config, dtype, device), dtype, device)
    pack(model)
    asked = {name: value for name, value in vars(arguments).items() if name != "output"}
    found = {"environment": where() | {"gpu": torch.cuda.get_device_name()}, "asked": asked, "weights": "random", "strategies": {}}
    for name, proposer in proposers(model, sizes, [int(budget) for budget in arguments.budgets.split(",")]).items():
        rounds = begun_rounds(model, proposer, arguments.batch, arguments.context, 2 * arguments.rounds, captured=True)
        own = found["strategies"][name] = profiled(rounds, arguments.rounds)
        print(f"{name}: {own['busy_us']:.0f} us busy, {own['idle_us']:.0f} idle, {own['operations']:.0f} operations", file=sys.stderr)
        for kernel in own["kernels"][:12]:
            print(f"  {kernel['us']:8.1f} us  {kernel['times']:6.1f} times  {kernel['grid']:>10}  {kernel['kernel'][:80]}", file=sys.stderr)
    if arguments.output:
        write(arguments.output, found)
    print(json.dumps({name: own["busy_us"] + own["idle_us"] for name, own in found["strategies"].items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
