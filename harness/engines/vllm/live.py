"""What a running vLLM engine really uses, read from the engine itself, for the record."""

from __future__ import annotations

from typing import Any

import torch

from harness.engines.torch.bytes_moved import copy_bytes_per_s


def live_settings(engine) -> dict[str, Any]:
    """Plain data. What cannot be read in this version of vLLM is ``None``."""
    import vllm

    config = engine.vllm_config
    runner = engine.model_executor.driver_worker.worker.model_runner
    scheduler, cache, compilation = config.scheduler_config, config.cache_config, config.compilation_config
    speculative = config.speculative_config
    device = torch.device(runner.device)
    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "device": device.type,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_scheduled_tokens": scheduler.max_num_scheduled_tokens,
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "async_scheduling": bool(scheduler.async_scheduling),
        "prefix_caching": bool(cache.enable_prefix_caching),
        "cache_block_size": cache.block_size,
        "cache_blocks": cache.num_gpu_blocks,
        "cache_dtype": str(cache.cache_dtype),
        "enforce_eager": config.model_config.enforce_eager,
        "compilation_mode": getattr(compilation.mode, "name", str(compilation.mode)),
        "captured_graphs": getattr(compilation.cudagraph_mode, "name", str(compilation.cudagraph_mode)),
        "captured_sizes": list(compilation.cudagraph_capture_sizes or ()),
        "attention": sorted(attention_classes(runner)),
        "worker": _path(type(engine.model_executor.driver_worker.worker)),
        "model_runner": _path(type(runner)),
        "model": type(runner.get_model()).__name__,
        "threads": torch.get_num_threads(),
        "speculative": None if speculative is None else {
            "method": speculative.method,
            "num_speculative_tokens": speculative.num_speculative_tokens,
        },
        "additional_config": config.additional_config or {},
        "copy_bytes_per_s": copy_bytes_per_s(device),
    }  # fmt: skip


def attention_classes(runner) -> set[str]:
    """The attention implementations of all layers, target's and drafter's."""
    layers = runner.compilation_config.static_forward_context.values()
    return {_path(type(layer.impl)) for layer in layers if hasattr(layer, "impl")}


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
