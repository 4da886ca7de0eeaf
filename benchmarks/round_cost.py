"""What a round of each strategy costs, against an autoregressive step and against the floor that memory sets.

    python -m benchmarks.round_cost [--shape qwen3-8b] [--context 1024] [--batch 1] [--budgets 15,31,63,127] [--eager]
        [--output results/round_cost.json]

Weights are random, so nearly no draft is accepted; a round costs the same whatever is accepted, and that cost is what is
measured: the median of many rounds, whole, by the device's clock on a GPU. ``floor_s`` is the time in which this machine copies
the bytes that an autoregressive step has to read (weights once, keys and values of the context): bytes / copy bandwidth. The
last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import torch

import harness  # noqa: F401  before anything starts threads
from benchmarks.stored import where, write
from harness.engines.torch.bytes_moved import cache_bytes_per_token, copy_bytes_per_s, weight_bytes
from harness.engines.torch.captured import CapturedRounds
from harness.engines.torch.device import pick_device, pick_dtype, seconds_of, use_cpu_kernels
from harness.engines.torch.engine import target_view
from harness.engines.torch.rounds import Rounds
from harness.models.config import ModelConfig, tensor_shapes
from harness.models.dense import DenseModel, build
from harness.records import Sampling
from kernels import pack, products_of
from strategies.base import Proposer
from strategies.baseline import NoProposer
from strategies.ddtree.proposer import TreeProposer
from strategies.dflash.checkpoint import new_drafter
from strategies.dflash.config import DrafterConfig, spread_taps
from strategies.dflash.proposer import ChainProposer
from strategies.mtp.checkpoint import new_head
from strategies.mtp.head import HeadConfig
from strategies.mtp.proposer import MTPProposer

_PLAIN = {"rms_norm_eps": 1e-6, "rope_scaling": None, "end_tokens": ()}
# Public sizes of the models; a drafter's layers and block are those of its published or shipped checkpoint.
SHAPES = {
    "qwen3-8b": (
        ModelConfig("qwen3", 4096, 36, 32, 8, 128, 12288, 151936, 40960, rope_theta=1e6, tied_head=False, qk_norm=True, **_PLAIN),
        {"layers": 5, "block": 16},
    ),
    "smollm2-135m": (
        ModelConfig("llama", 576, 30, 9, 3, 64, 1536, 49152, 8192, rope_theta=1e5, tied_head=True, qk_norm=False, **_PLAIN),
        {"layers": 3, "block": 8},
    ),
    "tiny": (
        ModelConfig("qwen3", 64, 6, 4, 2, 16, 96, 512, 4096, rope_theta=1e4, tied_head=True, qk_norm=True, **_PLAIN),
        {"layers": 2, "block": 8},
    ),
}
ROUNDS, PIECES = 20, 5


class RandomTensors(Mapping):
    """Weights by name, small and random, made on the device when they are asked for."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._shapes, self._options = tensor_shapes(config), {"dtype": dtype, "device": device}

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        return torch.ones(shape, **self._options) if len(shape) == 1 else torch.randn(shape, **self._options) * 0.02

    def __iter__(self):
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def proposers(model: DenseModel, sizes: Mapping[str, int], budgets: list[int]) -> dict[str, Proposer]:
    """Every strategy with a random drafter of the target's own widths."""
    config, view = model.config, target_view(model)
    widths = {
        "hidden_size": config.hidden_size, "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "intermediate_size": config.intermediate_size, "vocab_size": config.vocab_size,
        "num_target_layers": config.num_layers, "rms_norm_eps": config.rms_norm_eps, "rope_theta": config.rope_theta,
    }  # fmt: skip
    block = DrafterConfig(
        num_hidden_layers=sizes["layers"], block_size=sizes["block"], mask_token_id=config.vocab_size - 1,
        target_layer_ids=spread_taps(config.num_layers, sizes["layers"]), **widths,
    )  # fmt: skip
    drafter = ready(new_drafter(block), view)
    head = ready(new_head(HeadConfig(trained_steps=3, **widths)), view)
    found: dict[str, Proposer] = {"baseline": NoProposer(), "mtp, k=3": MTPProposer(head, view, 3)}
    found[f"dflash, block={sizes['block']}"] = ChainProposer(drafter, view)
    return found | {f"ddtree, budget={budget}": TreeProposer(drafter, view, budget) for budget in budgets}


def ready(drafter, view):
    return drafter.to(device=view.device, dtype=view.dtype).eval().requires_grad_(False)


@torch.inference_mode()
def begun_rounds(model: DenseModel, proposer: Proposer, batch: int, context: int, most: int, captured: bool) -> Rounds:
    """Rounds of ``batch`` requests behind ``context`` random tokens, with room for ``most`` of them."""
    prompt = torch.randint(model.config.vocab_size, (context,), generator=torch.Generator().manual_seed(0)).tolist()
    sizes = model, proposer, batch, context + most * proposer.longest + proposer.slack, False
    sampling = Sampling()
    rounds = CapturedRounds(*sizes, sampling=sampling, pool=torch.cuda.graph_pool_handle()) if captured else Rounds(*sizes)
    rounds.begin([prompt] * batch, sampling, [0] * batch)
    return rounds


@torch.inference_mode()
def round_s(model: DenseModel, proposer: Proposer, batch: int, context: int, captured: bool) -> list[float]:
    """Seconds of a round, each the mean of ``ROUNDS`` that follow one another."""
    rounds = begun_rounds(model, proposer, batch, context, (1 + PIECES) * ROUNDS, captured)

    def piece() -> None:
        for _ in range(ROUNDS):
            rounds.step()

    return [seconds_of(piece, model.embed.weight.device) / ROUNDS for _ in range(1 + PIECES)][1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--budgets", default="15,31,63,127")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--eager", action="store_true", help="without captured graphs, as on a CPU")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()

    device = pick_device("auto")
    dtype = pick_dtype(arguments.dtype, device)
    captured = device.type == "cuda" and not arguments.eager
    use_cpu_kernels(None, device, dtype)
    config, sizes = SHAPES[arguments.shape]
    model = build(config, RandomTensors(config, dtype, device), dtype, device)
    copied, weights = copy_bytes_per_s(device), weight_bytes(model)
    pack(model)
    moved = weights + arguments.batch * arguments.context * cache_bytes_per_token(config, dtype)
    asked = {name: value for name, value in vars(arguments).items() if name != "output"}
    found = {
        "environment": where(), "asked": asked, "weights": "random", "dtype": str(dtype), "captured_graphs": captured,
        "cpu_kernels": products_of(model),
        "copy_bytes_per_s": copied, "floor_bytes": moved, "floor_s": moved / copied, "strategies": {},
    }  # fmt: skip
    for name, proposer in proposers(model, sizes, [int(budget) for budget in arguments.budgets.split(",")]).items():
        pieces = round_s(model, proposer, arguments.batch, arguments.context, captured)
        own = found["strategies"][name] = {"round_s": median(pieces), "pieces_s": pieces}
        own["over_baseline"] = own["round_s"] / found["strategies"]["baseline"]["round_s"]
        own["share_of_floor"] = found["floor_s"] / own["round_s"]
        told = f"{1e3 * own['round_s']:.3f} ms a round, {own['over_baseline']:.2f} x baseline, floor / round {own['share_of_floor']:.2f}"
        print(f"{name}: {told}", file=sys.stderr)
    if arguments.output:
        write(arguments.output, found)
    print(json.dumps({name: own["round_s"] for name, own in found["strategies"].items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
