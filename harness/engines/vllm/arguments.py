"""What vLLM is started with: one set of settings for every strategy, and what a strategy itself adds.

A strategy enters vLLM through a function ``vllm_arguments`` beside its factory (the module of its ``_target_``):

    def vllm_arguments(target: Path, device: str, name: str, **options) -> dict

``target`` is the model's Hugging Face folder, ``device`` cpu or cuda, ``options`` the strategy's own configuration. It
returns fields of vLLM's ``EngineArgs`` (``speculative_config``, ``worker_cls``, ``additional_config``, …), or raises ``UserError`` for what vLLM
cannot run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.errors import UserError

ADAPTER = "vllm_arguments"
SCHEDULER = "harness.engines.vllm.counting.CountingScheduler"


@dataclass(frozen=True)
class Settings:
    """The engine's configuration (``conf/engine/vllm.yaml``), equal for every strategy of a run."""

    device: str
    dtype: str
    threads: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_gib: float
    gpu_memory_utilization: float
    enforce_eager: bool


def engine_arguments(folder: Path, settings: Settings, strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of vLLM's ``EngineArgs`` for one strategy; the same names, with dashes, are options of ``vllm serve``."""
    added = strategy_arguments(folder, settings.device, strategy)
    common = {
        "model": str(folder),
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "kv_cache_memory_bytes": int(settings.kv_cache_gib * (1 << 30)),
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "enforce_eager": settings.enforce_eager,
        # DDTree's next draft needs the step's tokens on the host, so no strategy's steps overlap.
        "async_scheduling": False,
        "enable_prefix_caching": False,
        "seed": 0,
    }
    for field in added:
        if field in common:
            raise UserError(f"strategy {strategy['name']}: {ADAPTER} sets {field}, which is one for all strategies; leave it out")
    return common | added


def strategy_arguments(folder: Path, device: str, strategy: Mapping[str, Any]) -> dict[str, Any]:
    """What the strategy's own adapter adds."""
    module = strategy["_target_"].rpartition(".")[0]
    adapter = getattr(import_module(module), ADAPTER, None)
    if adapter is None:
        raise UserError(
            f"strategy={strategy['name']}: has no adapter for vLLM; add a function {ADAPTER} to {module}, or use engine=torch"
        )
    options = {key: value for key, value in strategy.items() if not str(key).startswith("_")}
    return adapter(folder, device, **options)


def environment(settings: Settings) -> dict[str, str]:
    """Variables of an engine's process: no network, the engine in that very process, the V1 model runner, its threads."""
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        # The processes of a run take turns: none may bind itself to a share of the cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(settings.threads),
    }


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
