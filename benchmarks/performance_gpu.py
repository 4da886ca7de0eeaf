"""Tables of docs/performance.md from what is stored under results/h200/; see its README for how each was measured."""

from __future__ import annotations

import json
from typing import Any

from omegaconf import OmegaConf

from benchmarks.stored import ROOT
from harness import stats
from harness.aggregate import crossings

H200 = ROOT / "results" / "h200"
SHAPES = {"qwen3-8b": "Qwen3-8B's sizes, random weights", "smollm2-135m": "SmolLM2-135M's sizes, random weights"}

PARTS = ("_row_kernel", "_rows_kernel", "nvjet"), ("_attention_kernel",), ("_rotate_kernel",)


def read(*path: str) -> dict[str, Any]:
    return json.loads(H200.joinpath(*path).read_text())


def interval(value: float, low: float, high: float) -> str:
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def rounds() -> str:
    """What a round of each strategy costs, and what its kernels add to it."""
    tables = []
    for shape, words in SHAPES.items():
        profile = read("kernels", f"round_profile_{shape}.json")
        asked = profile["asked"]
        times = {name: (own["busy_us"] + own["idle_us"]) / 1e6 for name, own in profile["strategies"].items()}
        said = f"{words}, batch {asked['batch']}, bf16, {asked['context']} positions before"
        if (H200 / "kernels" / f"round_cost_{shape}.json").exists():  # without a profiler beside it
            cost = read("kernels", f"round_cost_{shape}.json")
            times = {name: own["round_s"] for name, own in cost["strategies"].items()}
            said += f"; floor {1e3 * cost['floor_s']:.3f} ms at {cost['copy_bytes_per_s'] / 1e12:.2f} TB/s"
        lines = [said + ":", "", "| a round of | ms | / AR step | products µs | attention µs | rotation µs | other µs |", "| --- |" + " ---: |" * 6]
        for name, seconds in times.items():
            shares = ["", "", "", ""]
            if told := profile["strategies"].get(name):
                products, attends, rotates = (added(told, *names) for names in PARTS)
                other = told["busy_us"] + told["idle_us"] - products - attends - rotates
                shares = [f"{us:.0f}" for us in (products, attends, rotates, other)]
            lines.append(f"| {name} | {1e3 * seconds:.3f} | {seconds / times['baseline']:.2f} | {' | '.join(shares)} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def added(told: dict[str, Any], *names: str) -> float:
    return sum(kernel["us"] for kernel in told["kernels"] if any(name in kernel["kernel"] for name in names))


def trees() -> str:
    """Construction of draft trees and what stands around it."""
    found = {}
    for each in read("kernels", "tree.json")["benchmarks"]:
        params = each["params"]
        found[params["name"], params["batch"], params["nodes"]] = each["extra_info"]["device_us"]
    columns = sorted({(batch, nodes) for _, batch, nodes in found})
    lines = ["| µs, batch × nodes | " + " | ".join(f"{batch} × {nodes}" for batch, nodes in columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for name in dict.fromkeys(name for name, *_ in found):
        lines.append(f"| {name} | " + " | ".join(f"{found[name, *column]:.1f}" for column in columns) + " |")
    return "\n".join([*lines, "", "15 slots over 151,936 tokens. tree: from the slots' logits, top-k and log-sum-exp (candidates) included."])


def attention() -> str:
    """Over a tree: µs and the share of the time in which the same bytes are copied."""
    found = {}
    for each in read("kernels", "attention.json")["benchmarks"]:
        if each["name"].startswith("test_attention["):
            params = each["params"]
            found[params["model"], params["context"], params["rows"]] = each["extra_info"]
    columns = sorted({rows for *_, rows in found})
    lines = ["| attention over a tree of … rows, µs (share of the floor) | " + " | ".join(map(str, columns)) + " |", "| --- |" + " ---: |" * len(columns)]
    for model, context in dict.fromkeys((model, context) for model, context, _ in found):
        told = (found[model, context, rows] for rows in columns)
        lines.append(f"| {model}, {context} positions | " + " | ".join(f"{one['device_us']:.1f} ({one['share_of_floor']:.2f})" for one in told) + " |")
    return "\n".join(lines)


def engines() -> str:
    stored = read("engine_baseline.json")
    speeds, ratio = stored["tokens_per_s"], interval(*stored["torch / vllm"])
    graphs = stored["engines"]["vllm"]["captured_graphs"]
    return (
        "| SmolLM2-135M, bf16, one request, autoregressive, tokens/s | torch engine | vLLM 0.20.1 | ratio [95 %] |\n| --- | ---: | ---: | ---: |\n"
        f"| 24 prompts × 3 of GSM8K, HumanEval and MT-Bench; vLLM's graphs {graphs} | {speeds['torch']:.0f} | {speeds['vllm']:.0f} | {ratio} |"
    )


def strategies() -> str:
    """Each strategy over the engine's own baseline, inside the torch engine and inside vLLM."""
    lines = [
        "| engine | strategy | tokens/s | × its engine's baseline [95 %] | tokens a round | round, ms | identical % |",
        "| --- | --- |" + " ---: |" * 5,
    ]
    said = []
    for engine, folder in {"torch": "speed", "vLLM 0.20.1": "vllm"}.items():
        asked = OmegaConf.load(H200 / folder / "three" / "config.yaml")
        said.append(f"{engine} {asked.suite.limit} prompts each and {asked.sampling.max_new_tokens} tokens")
        for name, own in read(folder, "three", "summary.json")["strategies"].items():
            round_ms = 1e3 * own["acceptance_length"] / own["decode_tokens_per_s"]
            speed = f"{own['decode_tokens_per_s']:.0f} | {interval(*own['speedup'])}"
            lines.append(f"| {engine} | {name} | {speed} | {own['acceptance_length']:.2f} | {round_ms:.2f} | {100 * own['identical']:.0f} |")
    told = f"GSM8K, HumanEval and MT-Bench, first turns, greedy, bf16: {', '.join(said)}. `ddtree` has {asked.strategy.budget} nodes. {inside_vllm()}"
    told += " Identical: answers that equal the baseline's; in bf16 the others part where two tokens are nearly as likely; in fp32 the torch engine's all do."
    return "\n".join([*lines, "", told])


def inside_vllm() -> str:
    """DDTree over DFlash on the same prompts, with the budget that other prompts chose."""
    chosen, shown = (read("vllm", suite, "summary.json")["strategies"] for suite in ("quick", "three"))
    best = max((name for name in chosen if name.startswith("ddtree")), key=lambda name: chosen[name]["decode_tokens_per_s"])
    ours, theirs = (shown[name]["speedup_by_prompt"] for name in (best, "dflash"))
    ratio = stats.speedup({prompt: [[ours[prompt] / theirs[prompt]]] for prompt in ours})
    return f"Inside vLLM `{best}`, the fastest on the suite `quick`, decodes {interval(*ratio.to_json())} times as fast as `dflash` [95 %]."


def batches() -> str:
    """Whole batches of DDTree and of the baseline, and the batch at which drafting stops paying."""
    lines = ["| batch | baseline, tokens/s in all | DDTree, tokens/s in all | ratio [95 %] |", "| ---: | ---: | ---: | ---: |"]
    ratios = {}
    for folder in sorted((H200 / "batches").glob("b*"), key=lambda folder: int(folder.name[1:])):
        own = json.loads((folder / "summary.json").read_text())["strategies"]
        total = "aggregate_tokens_per_s" if own["ddtree"]["aggregate_tokens_per_s"] else "decode_tokens_per_s"
        ratio = own["ddtree"]["aggregate_speedup"] or own["ddtree"]["speedup"]
        ratios[int(folder.name[1:])] = ratio[0]
        lines.append(f"| {folder.name[1:]} | {own['baseline'][total]:.0f} | {own['ddtree'][total]:.0f} | {interval(*ratio)} |")
    asked, crossed = OmegaConf.load(folder / "config.yaml"), [f"{batch:.1f}" for batch in crossings(ratios)]
    told = f"SmolLM2-135M, {asked.strategy.budget} nodes, {asked.suite.limit} first turns a suite, {asked.sampling.max_new_tokens} tokens, "
    told += f"the same at every batch; the ratio crosses 1 at {' and '.join(crossed) or 'none of them'}."
    return "\n".join([*lines, "", told])
