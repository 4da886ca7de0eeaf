"""Rounds of every strategy under torch's profiler, inside their processes, and the page about them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.vllm_speed.trace import summary
from harness.engines.vllm.profiling import ROUND
from harness.metrics import decode_tokens_per_s, mean_round
from harness.records import Request

_RUNNER, _PLUGIN = "vllm.v1.worker.gpu_model_runner:GPUModelRunner", "strategies.ddtree.vllm_plugin"
SPANS = (
    "vllm.v1.core.sched.scheduler:Scheduler.schedule",
    "harness.engines.vllm.counting:CountingScheduler.update_from_output",
    "vllm.v1.engine.output_processor:OutputProcessor.process_outputs",
    *(f"{_RUNNER}.{name}" for name in (
        "_update_states", "_prepare_inputs", "_build_attention_metadata", "_model_forward", "_sample", "propose_draft_token_ids",
        "_bookkeeping_sync", "take_draft_token_ids",
    )),
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.propose",
    *(f"{_PLUGIN}.runner:TreeRunner.{name}" for name in (
        "_prepare_inputs", "_plan", "_set_positions", "_build_attention_metadata", "_sample", "_accepted_first", "_grow",
    )),
    *(f"{_PLUGIN}.replaying:ReplayingRunner.{name}" for name in ("_take", "_sample", "_accepted_first")),
    *(f"{_PLUGIN}.replayed:ReplayedStep.{name}" for name in ("place", "accept", "grow")),
    *(f"{_PLUGIN}.runner:{name}" for name in ("accepted_path", "emitted", "best_first_tree")),
    "kernels.paged:PagedCaches.keep",
    f"{_PLUGIN}.flash_attention:TreeFlashImpl.attend",
    f"{_PLUGIN}.cpu_attention:TreeCPUImpl.attend",
)  # fmt: skip


def profiles(engine, strategies: Sequence[str], request: Request, skip: int, rounds: int, output: Path) -> Iterator[tuple[str, dict]]:
    """Each strategy's name with its profile, or with ``failed`` and the reason; traces are left in ``output``."""
    for strategy in strategies:
        trace = output / f"trace-{strategy}.json.gz"
        try:
            for _ in range(2):  # the first answer of a process pays for what the second no longer does
                decoded = engine.decode(strategy, request)
            told = engine.profile(strategy, request, skip=skip, rounds=rounds, spans=list(SPANS), trace=str(trace))
        except Exception as error:  # whatever an engine raises: the page says so and the others are still profiled
            yield strategy, {"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"}
            continue
        with gzip.open(trace, "rt") as file:
            found = summary(json.load(file)["traceEvents"], ROUND)
        plain = 1000 * sum(told["plain_s"]) / len(told["plain_s"])
        yield strategy, {
            "device_name": told["device"],
            "tokens_per_s": decode_tokens_per_s(decoded),
            "nodes_a_round": mean_round([decoded])["proposed"],
            "round_ms_without_profiler": plain,
            **found,
            "missing": told["missing"],
        }


HEADLINE = (
    ("round_ms_without_profiler", "ms a round"), ("round_ms", "with the profiler"), ("device_busy_ms", "device busy ms"),
    ("device_idle_ms", "device idle ms"), ("operations", "device operations"), ("host_calls_that_launch", "launching calls"),
    ("synchronisations", "synchronisations"), ("synchronisations_ms", "in them ms"), ("copies_to_the_host", "copies to the host"),
)  # fmt: skip


def page(found: dict[str, dict[str, Any]]) -> str:
    """Markdown: all strategies side by side, then each one's device and host."""
    whole = {name: profile for name, profile in found.items() if "failed" not in profile}
    lines = ["# What a round's time goes to", "", "Per round. The profiler slows the host down: read its shares, and the first column's times.", ""]
    lines += [f"| strategy | {' | '.join(title for _, title in HEADLINE)} |", "| --- |" + " ---: |" * len(HEADLINE)]
    lines += [f"| {name} | {' | '.join(f'{profile[key]:.2f}' for key, _ in HEADLINE)} |" for name, profile in whole.items()]
    lines += ["", *(f"- {name} failed: {profile['failed']}" for name, profile in found.items() if "failed" in profile)]
    for name, profile in whole.items():
        lines += ["", f"## {name}: the device, {profile['device_name']}", "", "| work | ms | operations |", "| --- | ---: | ---: |"]
        lines += [f"| {row['what']} | {row['ms']:.3f} | {row['operations']:.1f} |" for row in profile["device"]]
        lines += [f"| nothing | {profile['device_idle_ms']:.3f} | |", "", f"## {name}: the host", ""]
        lines += ["| in | own ms | device idle ms | launches | synchronisations | in them ms |", "| --- |" + " ---: |" * 5]
        for row in profile["host"]:
            figures = [f"{row[key]:.3f}" for key in ("host_ms", "device_idle_ms")] + [f"{row[key]:.1f}" for key in ("launched", "synchronisations")]
            lines.append(f"| {row['span']} | {' | '.join(figures)} | {row['synchronisations_ms']:.3f} |")
        lines += ["", f"## {name}: the longest kernels", "", "| kernel | ms | times |", "| --- | ---: | ---: |"]
        lines += [f"| `{row['what'].replace('|', '/')}` | {row['ms']:.3f} | {row['operations']:.1f} |" for row in profile["kernels"][:12]]
    return "\n".join(lines) + "\n"
