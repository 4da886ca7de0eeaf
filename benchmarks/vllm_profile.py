"""Where a round of a strategy spends its time inside vLLM: GPU time by kernel, and what the host did while the GPU was idle.

    python -m benchmarks.vllm_profile [--strategy ddtree] [--budget 63] [--rounds 20] [--dtype auto] [--output results/h200/vllm]
    python -m benchmarks.vllm_profile --tiny        # the same code on a CPU: one short prompt, few rounds

One vLLM engine in this process, driven as in a run, with the run's settings and compiled code. One prompt is decoded to warm up, again
to time its rounds undisturbed, and a third time up to some rounds that are profiled. The profiler slows the host down and not the
kernels: busy time of the GPU is taken from the profiled rounds, and its share from the undisturbed ones. Writes
``profile-STRATEGY[-BUDGET].json`` and ``.md``; the last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import yaml

import harness  # noqa: F401  before anything starts threads
from benchmarks.stored import ROOT, where
from benchmarks.trace import PHASE, ROUND, summarise
from harness import suites
from harness.engines.vllm.arguments import engine_arguments
from harness.engines.vllm.engine import variables
from harness.engines.vllm.serving import NOT_SERVED
from harness.engines.vllm.settings import choose_settings
from harness.errors import UserError
from harness.models.export import hugging_face_folder
from harness.models.vocabulary import load_vocabulary
from harness.models.weights import resolve
from harness.records import Request, Sampling

# What the host does in a round, by owner and method; those that a version or a strategy lacks are left out.
PHASES = {
    "scheduler": ("schedule", "update_from_output"),
    "runner": (
        "execute_model", "_update_states", "_prepare_inputs", "_build_attention_metadata", "_model_forward", "_sample", "_walk",
        "propose_draft_token_ids", "_accepted_first", "_grow", "sample_tokens", "_bookkeeping_sync",
    ),
    "drafter": ("propose", "_greedy_sample"),
    "module": ("commit", "best_first_tree"),
}  # fmt: skip
SKIPPED = 4  # rounds behind the prefill
SHOWN = 25


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="ddtree", choices=["baseline", "dflash", "ddtree"])
    parser.add_argument("--budget", type=int, default=63, help="nodes of ddtree's tree")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--output", type=Path, default=ROOT / "results/h200/vllm")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    if asked.tiny:
        asked.rounds, asked.dtype = min(asked.rounds, 3), "float32"
    try:
        found = profile(asked.strategy, asked.budget, asked.rounds, asked.dtype, {"kv_cache_gib": 0.1, "max_model_len": 512} if asked.tiny else {})
    except UserError as error:
        print(f"vllm_profile: {error}", file=sys.stderr)
        return 2
    asked.output.mkdir(parents=True, exist_ok=True)
    stem = asked.output / f"profile-{asked.strategy}{f'-{asked.budget}' if asked.strategy == 'ddtree' else ''}"
    stem.with_suffix(".json").write_text(json.dumps(found | {"where": where()}, indent=1) + "\n")
    stem.with_suffix(".md").write_text(markdown(found))
    per_round = found["per_round"]
    print(json.dumps({"round_us": found["round_us"], "gpu_busy_us": per_round["gpu"]["busy_us"], "written": str(stem)}))
    return 0


def profile(strategy: str, budget: int, rounds: int, dtype: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a round of ``strategy`` costs, from ``rounds`` of them. ``changes`` are options of the engine."""
    model = yaml.safe_load((ROOT / "conf/model/smollm2-135m.yaml").read_text())
    path = resolve(model)
    vocabulary = load_vocabulary(path)
    options = yaml.safe_load((ROOT / "conf/engine/vllm.yaml").read_text()) | changes
    options = {name: value for name, value in options.items() if name not in ("name", "_target_", *NOT_SERVED)}
    settings, chosen = choose_settings(dtype, vocabulary.context_length, **options)
    config = yaml.safe_load((ROOT / f"conf/strategy/{strategy}.yaml").read_text()) | ({"budget": budget} if strategy == "ddtree" else {})
    arguments = engine_arguments(hugging_face_folder(path, chosen), settings, config)
    os.environ.update(variables(strategy, settings))
    from harness.engines.vllm.driver import Driver

    driver = Driver(arguments)
    row = suites.load(suites.SuiteConfig()).rows[0]
    prompt = vocabulary.tokenizer.render([{"role": "user", "content": row.turns[0]}])
    # A round gives at most a block of 8 tokens: enough for all rounds, whatever is accepted. Nothing ends the answer early.
    request = Request(tuple(prompt), (), Sampling(max_new_tokens=min((SKIPPED + rounds + 2) * 8, settings.max_model_len - len(prompt) - 1)))
    driver.decode(request)
    undisturbed = driver.decode(request)
    return {
        "strategy": config,
        "settings": _settings(driver, settings),
        "prompt_tokens": len(prompt),
        "round_us": 1e6 * median(b - a for a, b in pairwise(r.at_s for r in undisturbed.rounds[SKIPPED:])),
        "rounds_timed": len(undisturbed.rounds) - SKIPPED - 1,
        "per_round": profiled(driver, request, rounds),
    }


def profiled(driver, request: Request, rounds: int) -> dict[str, Any]:
    """Per round of ``request``, behind the first few. Raises ``UserError`` when the answer has too few."""
    import torch
    from torch.profiler import ProfilerActivity, record_function

    cuda = torch.cuda.is_available()
    mark_phases(driver, record_function)
    driver.add("profiled", request)
    running = driver.running["profiled"]
    while len(running.steps) < 1 + SKIPPED and "profiled" in driver.running:
        driver.step()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(rounds):
            if "profiled" not in driver.running:
                raise UserError(f"--rounds {rounds}: the answer ended before; take fewer")
            with record_function(ROUND):
                driver.step()
        if cuda:
            torch.cuda.synchronize()
    if "profiled" in driver.running:
        driver.abort("profiled")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        return summarise(json.loads(file.read_text(errors="replace"))["traceEvents"])


def mark_phases(driver, mark) -> None:
    """Every phase that there is runs inside a ``mark`` of its name from now on."""
    from strategies.ddtree.vllm_plugin import runner as module

    runner = driver.engine.model_executor.driver_worker.worker.model_runner
    owners = {"scheduler": driver.scheduler, "runner": runner, "drafter": getattr(runner, "drafter", None), "module": module}
    for owner, names in PHASES.items():
        for name in names:
            if (usual := getattr(owners[owner], name, None)) is not None:
                label = f"{PHASE}{name}" if owner == "module" else f"{PHASE}{owner}.{name}"
                setattr(owners[owner], name, _marked(usual, label, mark))


def _marked(usual, label: str, mark):
    @functools.wraps(usual)
    def inside(*args, **kwargs):
        with mark(label):
            return usual(*args, **kwargs)

    return inside


def _settings(driver, settings) -> dict[str, Any]:
    from harness.engines.vllm.live import live_settings

    names = ("vllm", "torch", "device", "dtype", "captured_graphs", "compilation_mode", "attention", "model_runner", "copy_bytes_per_s")
    live = live_settings(driver.engine)
    return {name: live[name] for name in names} | {"max_num_seqs": settings.max_num_seqs, "max_model_len": settings.max_model_len}


def markdown(found: Mapping[str, Any]) -> str:
    """The same for reading."""
    per, live = found["per_round"], found["settings"]
    busy, whole = per["gpu"]["busy_us"], found["round_us"]
    name = " ".join(str(found["strategy"][key]) for key in ("name", "budget") if key in found["strategy"])
    gpu = (
        f"The GPU is busy for {busy:,.0f} µs of it: {busy / whole:.0%} of an undisturbed round. The host waits for the GPU "
        f"{_times(per['waits']):.1f} times and launches {per['launches']:.1f} kernels or graphs. Graphs: {live['captured_graphs']}."
    ) if busy else "No GPU worked."  # fmt: skip
    lines = [
        f"# A round of {name} in vLLM {live['vllm']}, {live['dtype']} on {live['device']}",
        "",
        f"A round takes {whole:,.0f} µs undisturbed (median of {found['rounds_timed']}), {per['wall_us']:,.0f} µs under the profiler "
        f"(mean of {per['rounds']}). {gpu}",
    ]
    tables = {
        "GPU time by class of kernel": per["classes"],
        "The longest kernels": dict(list(per["kernels"].items())[:SHOWN]),
        "Copies": per["copies"],
        "Waits of the host": per["waits"],
    }
    for title, rows in tables.items():
        lines += ["", f"## {title}", "", "| what | µs a round | times a round |", "| --- | ---: | ---: |"]
        lines += [f"| {_cell(what)} | {row['us']:,.1f} | {row['times']:,.1f} |" for what, row in rows.items()] or ["| none | | |"]
    for title, key in (("GPU idle, by what the host was doing", "idle_by_phase"), ("Host time by phase, those inside it left out", "host_by_phase")):
        lines += ["", f"## {title}", "", "| phase | µs a round, under the profiler |", "| --- | ---: |"]
        lines += [f"| {what} | {us:,.1f} |" for what, us in per[key].items()] or ["| none | |"]
    lines += ["", "## Pauses of the GPU", "", "| longer than [µs] | up to [µs] | times a round | µs a round |", "| ---: | ---: | ---: | ---: |"]
    lines += [f"| {gap['from_us']:g} | {gap['to_us'] or '–'} | {gap['times']:,.1f} | {gap['us']:,.1f} |" for gap in per["gaps"]]
    return "\n".join(lines) + "\n"


def _times(rows: Mapping[str, Mapping[str, float]]) -> float:
    return sum(row["times"] for row in rows.values())


def _cell(name: str) -> str:
    short = name if len(name) <= 90 else f"{name[:87]}…"
    return short.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
