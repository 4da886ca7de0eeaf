"""Finds, on this GPU, how each product of a target pass is best cut into programs, and stores it where the kernels look.

    python -m benchmarks.tune_tiles [--shapes qwen3-8b,smollm2-135m] [--rows 1,16,32,64,128] [--processes 16] [--output FILE]

Every candidate first runs once, in processes side by side, which compiles it; its result must be torch's in fp32 within
bf16's rounding. Then each is timed behind the product that comes before it in a layer, as a captured graph that goes through more
matrices than the L2 holds; the one that adds least to the other's time is stored (a cut that is fast behind itself need not be
so behind another). ``torch_us`` is the time of torch's own kernels for the same, for comparison. Without ``--output`` the
kernels' own file is written: kernels/triton_kernels/tiles.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product as all_of
from pathlib import Path

import torch
import triton

import harness  # noqa: F401  before anything starts threads
from benchmarks.graph_time import captured, replay_s
from benchmarks.products import Product, in_turn, products
from benchmarks.round_cost import SHAPES
from benchmarks.stored import where, write
from harness.engines.torch.bytes_moved import copy_bytes_per_s
from kernels.triton_kernels import tiles
from kernels.triton_kernels.few_rows import product as fused
from kernels.triton_kernels.tiles import Tile, key, most_stages, row_class, rule_of_thumb

DTYPE = torch.bfloat16
TOLERANCE = 2e-2
REPLAYS = 15
BEFORE = {"qkv": "down", "out": "qkv", "gate_up": "out", "down": "gate_up", "head": "down"}


def candidates(of: Product, rows: int) -> list[Tile]:
    """Cuts worth timing: weights in flight enough for the memory, no more shared memory or registers than there are."""
    found = [rule_of_thumb(rows, of.outputs, of.inputs, of.gated)]
    if found[0].block_m == 1:
        return list(dict.fromkeys([*found, *one_row(of)]))
    whole = max(16, row_class(rows))
    found += some_rows(of, whole)
    if of.outputs * of.inputs <= tiles._SMALL:
        found += [cut for block_m in (16, 32, 64) if block_m < whole for cut in some_rows(of, block_m)]
    return list(dict.fromkeys(found))


def one_row(of: Product) -> Iterator[Tile]:
    pieces = [width for width in (512, 1024, 2048, 4096) if width < 2 * of.inputs]
    for outputs, width, warps in all_of((1, 2, 4, 8), pieces, (2, 4, 8)):
        if 16 <= outputs * width * (2 if of.gated else 1) // (32 * warps) <= 128:  # weights of a thread
            yield Tile(1, outputs, width, warps=warps, stages=1)


def some_rows(of: Product, block_m: int) -> Iterator[Tile]:
    for block_n, block_k, split in all_of((64, 128), (64, 128, 256), (1, 2, 4, 8)):
        programs, steps = -(-of.outputs // block_n), -(-of.inputs // block_k)
        if split > 1 and (steps < 3 * split or steps % split or programs * split > 4 * tiles._PROGRAMS):
            continue
        wide = block_n * (2 if of.gated else 1)
        if wide * block_m > 128 * 128:  # the sums of a program, in registers
            continue
        for at_once in (1, 2, 3):
            stages = min(8, most_stages(block_m, block_n, block_k, of.gated, at_once))
            if stages >= 3:
                yield Tile(block_m, block_n, block_k, split, warps=8 if wide * block_m > 64 * 128 else 4, stages=stages)


def runs(task: tuple[Product, int, Tile]) -> str | None:
    """Compile and run once; what is wrong with it, or None."""
    of, rows, cut = task
    torch.manual_seed(0)
    operands = of.operands(rows, DTYPE, "cuda")
    weight = (torch.randn(of.matrix, device="cuda") * of.inputs**-0.5).to(DTYPE)
    try:
        result, _ = fused(weight=weight, cut=cut, **operands)
        torch.cuda.synchronize()
    except Exception as error:  # what a compiler says of one candidate must not end the search
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    wide = {name: value.float() if isinstance(value, torch.Tensor) else value for name, value in operands.items()}
    wanted = of.reference(weight=weight.float(), **wide)
    off = float((result.float() - wanted).norm() / wanted.norm())
    return None if off < TOLERANCE else f"off by {off:.1e}"


@torch.inference_mode()
def timed(of: Product, before: Product, rows: int, cuts: list[Tile]) -> dict[str, object]:
    """Seconds that each cut adds to ``before``, and that torch's own kernels add."""
    matrices, operands = of.matrices(DTYPE, "cuda"), of.operands(rows, DTYPE, "cuda")
    others = before.matrices(DTYPE, "cuda")
    calls, first = max(len(matrices), len(others)), in_turn(fused, others, **before.operands(rows, DTYPE, "cuda"))
    alone = replay_s(captured(first, calls), REPLAYS) / calls

    def added(work: Callable[[], object]) -> float:
        def both() -> None:
            first()
            work()

        return replay_s(captured(both, calls), REPLAYS) / calls - alone

    times = {cut: added(in_turn(fused, matrices, cut=cut, **operands)) for cut in cuts}
    return {"torch": added(in_turn(of.reference, matrices, **operands)), "cuts": dict(sorted(times.items(), key=lambda item: item[1]))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="qwen3-8b,smollm2-135m")
    parser.add_argument("--rows", default="1,16,32,64,128")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--output", type=Path, default=tiles.MEASURED)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")

    wanted = {}
    for shape in arguments.shapes.split(","):
        parts = products(SHAPES[shape][0])
        for (part, of), rows in all_of(parts.items(), map(int, arguments.rows.split(","))):
            wanted[key(rows, of.outputs, of.inputs, of.gated)] = of, rows, part, parts[BEFORE[part]]
    tasks = {name: [(of, rows, cut) for cut in candidates(of, rows)] for name, (of, rows, *_) in wanted.items()}
    flat = [task for each in tasks.values() for task in each]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        faults = dict(zip(flat, pool.map(runs, flat, chunksize=4), strict=True))
    print(f"{len(flat)} candidates, {sum(map(bool, faults.values()))} of them do not run", file=sys.stderr)
    copied = copy_bytes_per_s(torch.device("cuda"))
    stored = json.loads(arguments.output.read_text())["tiles"] if arguments.output.exists() else {}
    for name, (of, rows, part, before) in wanted.items():
        found = timed(of, before, rows, [cut for _, _, cut in tasks[name] if not faults[of, rows, cut]])
        (best, seconds), *others = found["cuts"].items()
        floor = of.nbytes(rows, DTYPE.itemsize) / copied
        thumb = found["cuts"].get(rule_of_thumb(rows, of.outputs, of.inputs, of.gated))
        stored[name] = {
            "tile": asdict(best), "us": 1e6 * seconds, "torch_us": 1e6 * found["torch"], "share_of_floor": floor / seconds,
            "rule_of_thumb_us": thumb and 1e6 * thumb,
        }  # fmt: skip
        told = f"{1e6 * seconds:.1f} us, {floor / seconds:.2f} of the floor; torch {1e6 * found['torch']:.1f} us"
        print(f"{name} ({part}): {best}: {told}; {len(others)} slower, to {1e6 * max(found['cuts'].values()):.1f} us", file=sys.stderr)
        for cut, reason in ((cut, faults[of, rows, cut]) for _, _, cut in tasks[name]):
            if reason:
                print(f"  {cut}: {reason}", file=sys.stderr)
        torch.cuda.empty_cache()
        environment = {part: said for part, said in where().items() if part != "packages"}
        environment |= {"triton": triton.__version__, "gpu": torch.cuda.get_device_name(), "copy_bytes_per_s": copied}
        write(arguments.output, {"environment": environment, "tiles": stored})
    print(json.dumps({name: stored[name]["share_of_floor"] for name in wanted}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
