"""Put stored figures into docs/performance.md: ``python -m benchmarks.performance_page``.

What is under results/h200/ is read by ``benchmarks.performance_gpu``. Read here, under results/cpu/: baseline.json and baseline_compiled.json of ``benchmarks.engine_baseline``; round_cost.json of
``benchmarks.round_cost --shape smollm2-135m``; step.json of
``python -m pytest benchmarks/test_cpu_step.py -k test_step --benchmark-json=FILE``.
"""

from __future__ import annotations

import json
from statistics import median

from benchmarks import performance_gpu
from benchmarks.stored import ROOT, fill

CPU = ROOT / "results" / "cpu"
PAGE = ROOT / "docs" / "performance.md"
KINDS = {"plain": "plain torch", "oneDNN": "torch, weights in oneDNN's order", "C": "C kernels"}


def main() -> None:
    fill(PAGE, "cpu", "\n\n".join([steps(), rounds(), engines()]))
    fill(PAGE, "gpu rounds", performance_gpu.rounds())
    fill(PAGE, "gpu kernels", "\n\n".join([performance_gpu.trees(), performance_gpu.attention()]))
    fill(PAGE, "gpu strategies", "\n\n".join([performance_gpu.engines(), performance_gpu.strategies(), performance_gpu.batches()]))


def steps() -> str:
    """Milliseconds of a pass by rows."""
    stored = json.loads((CPU / "step.json").read_text())
    times: dict[tuple[str, int], float] = {}
    for each in stored["benchmarks"]:
        if each["name"].startswith("test_step["):
            times[each["params"]["model"], each["params"]["rows"]] = median(each["stats"]["data"]) * 1000
    rows = sorted({rows for _, rows in times})
    lines = [f"| a pass over … rows, ms | {' | '.join(map(str, rows))} |", f"| --- |{' ---: |' * len(rows)}"]
    lines += [f"| {name} | {' | '.join(f'{times[kind, count]:.1f}' for count in rows)} |" for kind, name in KINDS.items() if (kind, rows[0]) in times]
    cpu = stored["machine_info"]["cpu"]
    said = f"SmolLM2-135M's sizes, 100 positions before, arg-max included; {cpu['count']} cores, {cpu['brand_raw']}."
    return "\n".join([*lines, "", said])


def rounds() -> str:
    """What a round of each strategy costs, drafting included."""
    stored = json.loads((CPU / "round_cost.json").read_text())
    lines = ["| a round of | ms | / an autoregressive step | floor / round |", "| --- | ---: | ---: | ---: |"]
    for name, own in stored["strategies"].items():
        lines.append(f"| {name} | {own['round_s'] * 1000:.1f} | {own['over_baseline']:.2f} | {own['share_of_floor']:.2f} |")
    asked = stored["asked"]
    said = f"SmolLM2-135M's sizes, random weights, {asked['context']} positions before; floor {stored['floor_s'] * 1000:.1f} ms."
    return "\n".join([*lines, "", said])


def engines() -> str:
    """Autoregressive decoding against vLLM's."""
    lines = ["| SmolLM2-135M, bf16, one request, tokens/s | torch engine | vLLM | ratio [95 %] |", "| --- | ---: | ---: | ---: |"]
    for name, file in {"vLLM eager": "baseline", "vLLM compiled": "baseline_compiled"}.items():
        stored = json.loads((CPU / f"{file}.json").read_text())
        speeds, (value, low, high) = stored["tokens_per_s"], stored["torch / vllm"]
        lines.append(f"| against {name} | {speeds['torch']:.1f} | {speeds['vllm']:.1f} | {value:.2f} [{low:.2f}, {high:.2f}] |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
