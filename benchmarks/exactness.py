"""Greedy output in fp32 of every strategy against Transformers' `generate`, token for token.

    python benchmarks/exactness.py [--prompts 100] [--batches 1] [--output FILE] [KEY=VALUE ...]
    python benchmarks/exactness.py --prompts 24 --batches 1,8 suite.root=FOLDER sampling.max_new_tokens=48     # on a GPU

The target is ours and Transformers' own model filled with the same tensors, both in fp32 on the same device; strategies and all else are
those of a run, with experiment=compare, DDTree also with budget auto, and suite=three (first turns). On a GPU rounds are decoded captured
and eagerly; engine.captured_graphs=true or false is one of the two alone. KEY=VALUE are keys of a run. Needs the extra `test`. The last line
on stdout is one JSON object; the file holds every prompt. Exit status 1 when a single token differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import harness  # noqa: E402, F401, I001  before torch, so that its threads wait as the command's do
import torch  # noqa: E402
from reference_models import generate, transformers_llama  # noqa: E402

from benchmarks.planned import first_turn, plan_of  # noqa: E402
from benchmarks.stored import where, write  # noqa: E402
from harness import suites  # noqa: E402
from harness.engines.torch.device import pick_device  # noqa: E402
from harness.errors import UserError  # noqa: E402
from harness.models.weights import load_checkpoint, resolve  # noqa: E402
from harness.records import Request  # noqa: E402
from harness.run import build_engine  # noqa: E402
from harness.schemas import Plan  # noqa: E402

USUAL = (
    "experiment=compare", "+strategy@arms.ddtree_auto=ddtree", "arms.ddtree_auto.budget=auto", "strategy.budget=63",
    "suite=three", "suite.max_turns=1", "model.dtype=float32",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100, help="how many, a row of each suite in turn")
    parser.add_argument("--batches", type=numbers, default=[1], help="requests at once, several with commas between")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "exactness" / "smollm2-135m-fp32.json")
    arguments, options = parser.parse_known_args()
    try:
        report = measure(arguments.prompts, arguments.batches, options)
    except UserError as error:
        print(f"exactness: {error}", file=sys.stderr)
        return 2
    write(arguments.output, report)
    print(json.dumps({"output": str(arguments.output), "prompts": len(report["prompts"]), "totals": report["totals"]}))
    return 0 if all(total["identical"] == len(report["prompts"]) for total in report["totals"].values()) else 1


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def measure(count: int, batches: Sequence[int], options: Sequence[str]) -> dict:
    """Everything that is stored: each prompt decoded in each way, totals, settings, versions."""
    if count < 1:
        raise UserError(f"--prompts {count}: ask for at least 1")
    plan = plan_of([*USUAL, *options])
    device, asked_graphs = pick_device(plan.engine.device), plan.engine.captured_graphs
    graphs = (True, False) if device.type == "cuda" and asked_graphs is None else (bool(asked_graphs),)
    share = plan.suite.limit or -(-count // len(plan.suite.of or [plan.suite.name]))
    rows = suites.load(replace(plan.suite, limit=share)).rows[:count]
    torch.set_float32_matmul_precision("highest")  # no TF32 in either model, whatever the environment says
    engines = {captured: build_engine(plan_of([*USUAL, *options, f"engine.captured_graphs={captured}"])) for captured in graphs}
    engine = engines[graphs[0]]
    asked = [first_turn(engine, plan, row, round_times=True) for row in rows]
    answers = answers_of(plan, device, asked)
    prompts = [
        {"id": row.id, "prompt_tokens": len(request.prompt_ids), "output_tokens": len(answer), "strategies": {}}
        for row, request, answer in zip(rows, asked, answers, strict=True)
    ]
    for captured, batch, strategy in product(graphs, batches, plan.arms):
        way = f"{strategy}, {'captured' if captured else 'eager'}, batch {batch}"
        groups = [asked[begin : begin + batch] for begin in range(0, len(asked), batch)]
        decoded = [each for group in groups for each in engines[captured].decode_batch(strategy, group)]
        for prompt, output, answer in zip(prompts, decoded, answers, strict=True):
            prompt["strategies"][way] = compared(output, answer)
        equal = sum(prompt["strategies"][way]["identical"] for prompt in prompts)
        print(f"{way}: {equal} of {len(prompts)} identical", file=sys.stderr, flush=True)
    ways = list(prompts[0]["strategies"])
    return {
        "claim": "greedy, fp32: output tokens equal those of transformers generate",
        "options": [*USUAL, *options],
        "max_new_tokens": plan.sampling.max_new_tokens,
        "engines": {"captured" if captured else "eager": dict(engine.settings()) for captured, engine in engines.items()},
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "environment": where(),
        "totals": {way: total([prompt["strategies"][way] for prompt in prompts]) for way in ways},
        "prompts": prompts,
    }


def answers_of(plan: Plan, device: torch.device, asked: Sequence[Request]) -> list[list[int]]:
    """Those of Transformers' model, one prompt at a time."""
    theirs = transformers_llama(load_checkpoint(resolve(plan.model))).to(device)
    found = []
    for request in asked:
        found.append(generate(theirs, request.prompt_ids, request.sampling.max_new_tokens, request.end_tokens))
        print(f"transformers: {len(found)} of {len(asked)}", file=sys.stderr, flush=True)
    return found


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


if __name__ == "__main__":
    sys.exit(main())
