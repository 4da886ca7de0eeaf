"""Finds, on this GPU, how each product of a target pass is best cut into programs, and stores it where the kernels look.

    python -m benchmarks.tune_tiles [--shapes qwen3-8b,smollm2-135m] [--rows 1,2,4,16,32,64,128] [--processes 16] [--tiny] [--output FILE]

Every candidate first runs once, in processes side by side, which compiles it; its result must be torch's in fp32 within
bf16's rounding. Then each is timed where it will be used: in a captured pass over that many rows behind 1,024 positions, through as
many layers as the L2 cannot hold, with the best cuts so far of all other products. A kernel begins beside the one before it, so
that a cut which is fast alone need not be so in its place. The search begins with the cuts that are in use; of 2 and 4 rows those of
16 are candidates, too. The best few of each product meet once more when all have been found. ``pass_us`` is the time of such a
pass, ``rule_of_thumb_pass_us`` that with this one product cut by rule. Without ``--output`` the kernels' own file is written:
kernels/triton_kernels/tiles.json. ``--tiny`` shows on a CPU that this file works, and leaves that one alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import product as all_of
from pathlib import Path
from statistics import median

import torch

import harness  # noqa: F401  before anything starts threads
from benchmarks.graph_time import Graphs
from benchmarks.products import Product, products
from benchmarks.round_cost import SHAPES, RandomTensors
from benchmarks.rows_cost import a_pass
from benchmarks.stored import where, write
from harness.engines.torch.bytes_moved import copy_bytes_per_s
from harness.engines.torch.device import pick_device, seconds_of
from harness.models.dense import build
from kernels import pack
from kernels.triton_kernels import tiles
from kernels.triton_kernels.few_rows import product as fused
from kernels.triton_kernels.tiles import Tile, key, may_stream, most_stages, row_class, rule_of_thumb, tile

DTYPE = torch.bfloat16
TOLERANCE = 2e-2
CONTEXT, REPLAYS, AGAIN = 1024, 15, 5
MOST_BYTES = 3 << 30  # of layers' weights in a pass


def candidates(of: Product, rows: int) -> list[Tile]:
    """Cuts worth timing, that which is used now first: weights in flight enough for the memory, no more shared memory or registers
    than there are."""
    shape = of.outputs, of.inputs, of.gated
    found = [tile(rows, *shape, DTYPE), rule_of_thumb(rows, *shape)]
    if may_stream(rows, of.inputs):
        by_instruction = [tile(16, *shape, DTYPE)] if rows > 1 else []
        return list(dict.fromkeys([*found, *by_instruction, *streamed(of, row_class(rows))]))
    whole = max(16, row_class(rows))
    found += some_rows(of, whole)
    if _small(of):
        found += [cut for block_m in (16, 32, 64) if block_m < whole for cut in some_rows(of, block_m)]
    return list(dict.fromkeys(found))


def streamed(of: Product, block_m: int) -> Iterator[Tile]:
    """Of several rows a thread keeps sums and inputs of each: fewer weights then, or the compiler puts registers into memory."""
    pieces = [width for width in (512, 1024, 2048, 4096) if width < 2 * of.inputs]
    for outputs, width, warps in all_of((1, 2, 4, 8), pieces, (2, 4, 8)):
        wide = outputs * (2 if of.gated else 1)
        if block_m > 1 and (wide > 8 or (of.gated and warps == 2)):
            continue
        most = 128 if block_m == 1 or (of.inputs <= 4096 and warps > 2) else 64
        if 16 <= wide * width // (32 * warps) <= most:  # weights of a thread
            yield Tile(block_m, outputs, width, warps=warps, stages=1)


def some_rows(of: Product, block_m: int) -> Iterator[Tile]:
    widths, depths = ((32, 64), (64, 128)) if _small(of) else ((64, 128), (64, 128, 256))
    for block_n, block_k, split in all_of(widths, depths, (1, 2, 3, 4, 8)):
        programs, steps = -(-of.outputs // block_n), -(-of.inputs // block_k)
        if split > 1 and (steps < 3 * split or steps % split or programs * split > 4 * tiles.PROGRAMS):
            continue
        wide = block_n * (2 if of.gated else 1)
        if wide * block_m > 128 * 128 or programs * split < 15:  # the sums of a program, in registers
            continue
        beside = min(3, -(-programs * split // tiles.PROGRAMS))
        for at_once in [beside] if _small(of) else range(max(1, beside - 1), min(3, beside + 1) + 1):
            for early in _early(of, wide, block_k, split):
                most = most_stages(block_m, block_n, block_k, of.gated, at_once, early)
                blocks = -(-(-(-of.inputs // split) - early) // block_k)
                if most >= min(3, blocks):
                    yield Tile(block_m, block_n, block_k, split, 8 if wide * block_m > 64 * 128 else 4, max(1, min(8, most)), early)


def _early(of: Product, wide: int, block_k: int, split: int) -> list[int]:
    """None, and the two largest that leave whole blocks."""
    share = of.inputs // split
    fit = [early for early in (128, 256, 512, 1024) if early <= share and (share - early) % block_k == 0 and 2 * wide * early <= 80 << 10]
    return [0, *(fit[-2:] if of.inputs % split == 0 else [])]


def _small(of: Product) -> bool:
    return of.outputs * of.inputs <= tiles.SMALL


def runs(task: tuple[Product, int, Tile]) -> str | None:
    """Compile and run once; what is wrong with it, or None."""
    of, rows, cut = task
    device = pick_device("auto")
    if device.type == "cpu":
        return None  # with --tiny: nothing to compile
    torch.manual_seed(0)
    operands = of.operands(rows, DTYPE, device)
    weight = (torch.randn(of.matrix, device=device) * of.inputs**-0.5).to(DTYPE)
    wide = {name: value.float() if isinstance(value, torch.Tensor) else value for name, value in operands.items()}
    wanted = of.reference(weight=weight.float(), **wide)
    ways = [operands]
    if rows <= max(tiles.STREAMED) and "scaled" in operands:  # the product before may be streamed, and then hands nothing on
        ways.append(operands | {"scaled": None})
    for way in ways:
        try:
            result, _ = fused(weight=weight, cut=cut, **way)
            off = float((result.float() - wanted).norm() / wanted.norm())
        except Exception as error:  # what a compiler says of one candidate must not end the search
            return f"{type(error).__name__}: {error}".splitlines()[0][:200]
        if not off < TOLERANCE:
            return f"off by {off:.1e}"
    return None


class Search:
    """Over the products of a pass: ``timed`` has seconds of passes by product and cut, ``best`` the best cut of each product."""

    def __init__(self, one_pass: Callable[[], torch.Tensor], device: torch.device, wanted: dict[str, list[Tile]]) -> None:
        self._pass, self._device, self._wanted = one_pass, device, wanted
        self._graphs = Graphs() if device.type == "cuda" else None
        self.timed: dict[str, dict[Tile, float]] = {name: {} for name in wanted}
        self.best = {name: tiles.measured().get(name) or cuts[0] for name, cuts in wanted.items()}
        tiles.measured().update(self.best)

    def run(self) -> None:
        for name, cuts in self._wanted.items():
            self._choose(name, cuts)
        for name in self._wanted:
            self._choose(name, sorted(self.timed[name], key=self.timed[name].__getitem__)[:AGAIN])

    def _choose(self, name: str, cuts: list[Tile]) -> None:
        times = {cut: self._seconds(name, cut) for cut in dict.fromkeys([*cuts, self.best[name]])}
        self.timed[name] |= times
        self.best[name] = tiles.measured()[name] = min(times, key=times.__getitem__)

    @torch.inference_mode()
    def _seconds(self, name: str, cut: Tile) -> float:
        tiles.measured()[name] = cut
        if self._graphs:
            return self._graphs.replay_s(self._pass, REPLAYS)
        return median(seconds_of(self._pass, self._device) for _ in range(3))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="qwen3-8b,smollm2-135m")
    parser.add_argument("--rows", default="1,2,4,16,32,64,128")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--tiny", action="store_true", help="a tiny shape and three cuts a product, to try it without a GPU")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = pick_device("auto")
    if arguments.tiny:
        arguments.shapes, arguments.rows, arguments.processes = "tiny", "1,4,16", 1
    elif device.type != "cuda":
        parser.error("needs a GPU, or --tiny")
    output = arguments.output or (None if arguments.tiny else tiles.MEASURED)
    shapes, rows_wanted = _asked(parser, arguments)

    tasks = {}
    for shape, rows in all_of(shapes, rows_wanted):
        for of in products(SHAPES[shape][0]).values():
            cuts = candidates(of, rows)
            tasks[shape, rows, of] = cuts[:3] if arguments.tiny else cuts
    flat = [(of, rows, cut) for (_, rows, of), cuts in tasks.items() for cut in cuts]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        faults = dict(zip(flat, pool.map(runs, flat, chunksize=4), strict=True))
    print(f"{len(flat)} candidates, {sum(map(bool, faults.values()))} of them do not run", file=sys.stderr)
    for (of, rows, cut), reason in faults.items():
        if reason:
            print(f"  {key(rows, of.outputs, of.inputs, of.gated)}: {cut}: {reason}", file=sys.stderr)
    stored = json.loads(output.read_text())["tiles"] if output and output.exists() else {}
    copied = copy_bytes_per_s(device)
    for shape in shapes:
        model = _layers_of(shape, device)
        for rows in rows_wanted:
            names = {key(rows, of.outputs, of.inputs, of.gated): of for of in products(SHAPES[shape][0]).values()}
            wanted = {name: [cut for cut in tasks[shape, rows, of] if not faults[of, rows, cut]] for name, of in names.items()}
            search = Search(a_pass(model, rows, CONTEXT if device.type == "cuda" else 64), device, wanted)
            search.run()
            for name, of in names.items():
                times, best = search.timed[name], search.best[name]
                thumb = times.get(rule_of_thumb(rows, of.outputs, of.inputs, of.gated))
                stored[name] = {"tile": asdict(best), "pass_us": 1e6 * times[best], "rule_of_thumb_pass_us": thumb and 1e6 * thumb}
                told = f"{1e6 * times[best]:.1f} us a pass; by rule {1e6 * (thumb or 0):.1f}; {len(times)} cuts, to {1e6 * max(times.values()):.1f}"
                print(f"{shape} {name}: {best}: {told}", file=sys.stderr)
            environment = {part: said for part, said in where().items() if part != "packages"}
            if output:
                write(output, {"environment": environment | {"copy_bytes_per_s": copied}, "tiles": stored})
        del model
    print(json.dumps({name: told["pass_us"] for name, told in stored.items() if "pass_us" in told}))
    return 0


def _asked(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Shapes and numbers of rows."""
    shapes, rows = arguments.shapes.split(","), arguments.rows.split(",")
    if unknown := [shape for shape in shapes if shape not in SHAPES]:
        parser.error(f"--shapes {unknown[0]}: there are {', '.join(SHAPES)}")
    if wrong := [each for each in rows if not each.isdecimal() or not 1 <= int(each) <= tiles.MOST_ROWS]:
        parser.error(f"--rows {wrong[0]}: whole numbers from 1 to {tiles.MOST_ROWS}, with commas between")
    return shapes, list(map(int, rows))


def _layers_of(shape: str, device: torch.device):
    """A model of random weights with as many layers as ``MOST_BYTES`` hold."""
    config, _ = SHAPES[shape]
    a_layer = DTYPE.itemsize * sum(of.matrix[0] * of.inputs for name, of in products(config).items() if name != "head")
    config = replace(config, num_layers=min(config.num_layers, max(2, MOST_BYTES // a_layer)))
    model = build(config, RandomTensors(config, DTYPE, device), DTYPE, device)
    pack(model)
    return model


if __name__ == "__main__":
    sys.exit(main())
