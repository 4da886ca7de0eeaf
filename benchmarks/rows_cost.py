"""What a target pass over a tree's rows costs, from embedding to logits, against the floor that memory sets.

    python -m benchmarks.rows_cost [--shapes qwen3-8b,smollm2-135m] [--rows 1,16,64,128] [--contexts 1024,8192] [--tiny]
        [--output results/rows_cost.json]

Weights are random, the context too; nothing is drafted or accepted. On a GPU a pass is a captured graph, ``pass_s`` the median of
its replays by the device's clock. ``floor_s`` is the time in which this machine copies the bytes that a pass over one row has to
read (weights once, keys and values of the context), the same for any number of rows. ``over_one_row`` compares with the pass over
one row at the same context. ``--tiny`` shows on a CPU that this file works. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

import harness  # noqa: F401  before anything starts threads
from benchmarks.graph_time import captured, replay_s
from benchmarks.round_cost import SHAPES, RandomTensors
from benchmarks.stored import where, write
from harness.engines.torch.bytes_moved import cache_bytes_per_token, copy_bytes_per_s, weight_bytes
from harness.engines.torch.device import pick_device, pick_dtype, seconds_of
from harness.models.dense import DenseModel, build
from kernels import Rows, pack, row_mask

TINY = {"shapes": "tiny", "rows": "1,5", "contexts": "32,64"}


def a_pass(model: DenseModel, rows: int, context: int) -> Callable[[], torch.Tensor]:
    """A pass over ``rows`` rows of one request that has ``context`` positions, as often as it is called; returns logits."""
    device = model.embed.weight.device
    cache = model.new_cache(1, context + rows)
    cache.attention.normal_()
    cache.lengths.fill_(context)
    tokens = torch.randint(model.config.vocab_size, (1, rows), device=device)
    parents = torch.tensor([[(row - 1) // 2 if row else -1 for row in range(rows)]], device=device)
    depths = torch.tensor([[(row + 1).bit_length() - 1 for row in range(rows)]], device=device)

    def one_pass():
        seen = Rows(cache.lengths, row_mask(parents) if rows > 1 else None)
        hidden, _ = model(tokens, cache.lengths[:, None] + depths, cache, seen)
        return model.logits(hidden)

    return one_pass


@torch.inference_mode()
def pass_s(model: DenseModel, rows: int, context: int) -> float:
    """Median seconds of ``a_pass``."""
    one_pass, device = a_pass(model, rows, context), model.embed.weight.device
    assert one_pass().isfinite().all()
    if device.type == "cuda":
        return replay_s(captured(one_pass, 1))
    return median(seconds_of(one_pass, device) for _ in range(3))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="qwen3-8b,smollm2-135m")
    parser.add_argument("--rows", default="1,16,64,128")
    parser.add_argument("--contexts", default="1024,8192")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.tiny:
        vars(arguments).update(TINY)

    device = pick_device("auto")
    dtype = pick_dtype(arguments.dtype, device)
    copied = copy_bytes_per_s(device)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    found = {
        "environment": where() | {"gpu": gpu}, "weights": "random", "dtype": str(dtype), "captured_graphs": gpu is not None,
        "copy_bytes_per_s": copied, "passes": [],
    }  # fmt: skip
    for shape in arguments.shapes.split(","):
        config, _ = SHAPES[shape]
        model = build(config, RandomTensors(config, dtype, device), dtype, device)
        read = weight_bytes(model)
        pack(model)
        for context in map(int, arguments.contexts.split(",")):
            floor = (read + context * cache_bytes_per_token(config, dtype)) / copied
            one_row = None
            for rows in map(int, arguments.rows.split(",")):
                seconds = pass_s(model, rows, context)
                one_row = seconds if rows == 1 else one_row
                row = {"shape": shape, "context": context, "rows": rows, "pass_s": seconds, "floor_s": floor}
                row |= {"share_of_floor": floor / seconds, "over_one_row": one_row and seconds / one_row}
                found["passes"].append(row)
                told = f"{1e3 * seconds:.3f} ms, {floor / seconds:.2f} of the floor of {1e3 * floor:.3f} ms"
                print(f"{shape}, {context} positions, {rows} rows: {told}", file=sys.stderr)
        del model
    if arguments.output:
        write(arguments.output, found)
    print(json.dumps(found["passes"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
