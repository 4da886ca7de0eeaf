"""Greedy output in fp32 of every strategy against Transformers' `generate`, token for token, on 100 prompts.

    python benchmarks/exactness.py [--prompts 100] [--max-new-tokens 64] [--suite-root FOLDER] [--output FILE]

The target is SmolLM2-135M (its Q4_1 weights, dequantised) in fp32 on the CPU, ours and Transformers' own model filled
with the same tensors; the drafters are the shipped ones, or the folders that --dflash and --mtp name. Prompts are the
papers' rows of gsm8k, humaneval and mt_bench (first turns), a third each. Needs the extra `test`. The last line on stdout
is one JSON object; the file holds every prompt. Exit status 1 when a single token differs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import harness  # noqa: E402, F401, I001  before torch, so that its threads wait as the command's do
import torch  # noqa: E402
from reference_models import generate, smollm2_pair  # noqa: E402

import strategies.baseline  # noqa: E402
import strategies.ddtree  # noqa: E402
import strategies.dflash  # noqa: E402
import strategies.mtp  # noqa: E402
from benchmarks.stored import write  # noqa: E402
from harness.engines.torch.decode import decode  # noqa: E402
from harness.engines.torch.engine import target_view  # noqa: E402
from harness.errors import UserError  # noqa: E402
from harness.models.weights import sha256  # noqa: E402
from harness.records import Request, Sampling  # noqa: E402
from harness.suites import SuiteConfig, load  # noqa: E402
from strategies.checkpoint import WEIGHTS, drafter_folder  # noqa: E402
from strategies.dflash.checkpoint import SHIPPED as DFLASH  # noqa: E402
from strategies.mtp.checkpoint import SHIPPED as MTP  # noqa: E402

SUITES = ("gsm8k", "humaneval", "mt_bench")
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "gguf")


def main() -> int:
    arguments = read_arguments()
    try:
        report = measure(arguments)
    except UserError as error:
        print(f"exactness: {error}", file=sys.stderr)
        return 2
    write(arguments.output, report)
    print(json.dumps({"output": str(arguments.output), "prompts": len(report["prompts"]), **report["totals"]}))
    return 0 if all(total["identical"] == len(report["prompts"]) for total in report["totals"].values()) else 1


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100, help="how many, spread over the suites (100: 34, 33, 33)")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--budget", type=int, default=64, help="nodes of DDTree's trees")
    parser.add_argument("--k", type=int, default=3, help="length of MTP's chains")
    parser.add_argument("--dflash", default="smollm2-135m", help="DFlash drafter: a shipped name or a folder")
    parser.add_argument("--mtp", default="smollm2-135m", help="MTP head: a shipped name or a folder")
    parser.add_argument("--suite-root", default=None, help="folder of the suites' files; default: suites/ in the cache folder")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "exactness" / "smollm2-135m-fp32.json")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> dict:
    """Everything that is stored: each prompt with each strategy, totals, versions."""
    rows = list(asked(arguments.prompts, arguments.suite_root))
    models = smollm2_pair()
    view = target_view(models.ours)
    arms = {
        "baseline": strategies.baseline.build(view, "baseline"),
        "mtp": strategies.mtp.build(view, "mtp", arguments.mtp, arguments.k),
        "dflash": strategies.dflash.build(view, "dflash", arguments.dflash),
        "ddtree": strategies.ddtree.build(view, "ddtree", arguments.dflash, arguments.budget),
    }
    ends = models.ours.config.end_tokens
    sampling = Sampling(max_new_tokens=arguments.max_new_tokens)
    prompts = []
    for done, row in enumerate(rows, start=1):
        ids = models.checkpoint.tokenizer.render([{"role": "user", "content": row.turns[0]}])
        answer = generate(models.theirs, ids, arguments.max_new_tokens, ends)
        decoded = {name: decode(models.ours, arm, Request(tuple(ids), ends, sampling)) for name, arm in arms.items()}
        found = {name: compared(output, answer) for name, output in decoded.items()}
        prompts.append({"id": row.id, "prompt_tokens": len(ids), "output_tokens": len(answer), "strategies": found})
        print(f"{done}/{len(rows)} {row.id}: {[name for name in found if found[name]['identical']]}", file=sys.stderr)
    return {
        "claim": "greedy, fp32: output tokens equal those of transformers generate",
        "model": "smollm2-135m",
        "model_sha256": models.checkpoint.checksum,
        "drafters_sha256": {"dflash": checksum(arguments.dflash, DFLASH), "mtp": checksum(arguments.mtp, MTP)},
        "settings": {"max_new_tokens": arguments.max_new_tokens, "budget": arguments.budget, "k": arguments.k},
        "environment": environment(),
        "totals": {name: total([prompt["strategies"][name] for prompt in prompts]) for name in arms},
        "prompts": prompts,
    }


def checksum(name_or_folder: str, shipped: Path) -> str:
    return sha256([drafter_folder(name_or_folder, shipped) / WEIGHTS])


def asked(count: int, root: str | None) -> Iterator:
    """``count`` rows, the suites' shares differing by at most one; the first suites get the larger ones."""
    if count < 1:
        raise UserError(f"--prompts {count}: ask for at least 1")
    for place, name in enumerate(SUITES):
        share = count // len(SUITES) + (place < count % len(SUITES))
        if share:
            yield from load(SuiteConfig(name, limit=share, root=root)).rows


def compared(output, answer: list[int]) -> dict:
    """One strategy on one prompt; ``first_difference`` is the first position that differs, or null."""
    tokens = list(output.tokens)
    differing = (i for i in range(max(len(tokens), len(answer))) if tokens[i : i + 1] != answer[i : i + 1])
    return {
        "identical": tokens == answer,
        "first_difference": next(differing, None),
        "rounds": len(output.rounds),
        "accepted": sum(r.accepted for r in output.rounds),
    }


def total(found: list[dict]) -> dict:
    """Sums over prompts, and tokens a round, pooled: (accepted + rounds) / rounds, null without a round."""
    rounds, accepted = sum(f["rounds"] for f in found), sum(f["accepted"] for f in found)
    length = round((accepted + rounds) / rounds, 4) if rounds else None
    return {"identical": sum(f["identical"] for f in found), "rounds": rounds, "accepted": accepted, "acceptance_length": length}


def environment() -> dict:
    packages = {name: metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "machine": platform.machine(), "threads": torch.get_num_threads(), **packages}


if __name__ == "__main__":
    sys.exit(main())
