"""What vLLM and this machine offer a strategy. Everything is imported for real, so ask in a process that may break."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import import_module, metadata
from typing import Any

from harness import nvidia
from harness.engines.torch import probe as torch_probe
from harness.engines.vllm.arguments import ADAPTER
from harness.probe.rows import Row, look

# A strategy's own questions: a function of this name beside its factory, ``vllm_checks(device) -> list[Row]``.
CHECKS = "vllm_checks"


def rows(strategy: Mapping[str, Any]) -> list[Row]:
    module = import_module(strategy["_target_"].rpartition(".")[0])
    own = getattr(module, CHECKS, lambda device: [])
    found = [
        look("vLLM", _vllm, "without it engine=vllm runs nothing; docs/vllm.md says which to install", needed=True),
        look("engine", lambda: _name("vllm.v1.engine.llm_engine:LLMEngine"), "without it engine=vllm runs nothing", needed=True),
        look("scheduler", lambda: _name("harness.engines.vllm.counting:CountingScheduler"), "rounds are counted there", needed=True),
        look("adapter", lambda: _adapter(module), "the strategy's way into vLLM", needed=True),
    ]
    if not any(row.prevents for row in found[:1]):
        found += own(_device())
    return [
        *found,
        look("DFlash proposer", lambda: _name("vllm.v1.spec_decode.dflash:DFlashProposer"), "dflash and ddtree draft with it"),
        look("DFlash model", lambda: _model("DFlashDraftModel"), "drafters in the published format load as this"),
        look("MTP models", _mtp_models, "mtp runs on these and their like, with the heads of the model itself"),
        look("tree attention", _tree_attention, "vLLM's own trees, one static tree for all; ddtree brings its own attention"),
        look("speculators", lambda: _distribution("speculators"), "checkpoints in its format; none of ours need it"),
        look("plugin entry point", _entry_point, "vLLM knows of the plugin; a worker named in the configuration needs no entry"),
        look("GPU", _gpu, "without one vLLM's CPU build is needed, which is for tests"),
        *torch_probe.rows(strategy),
        look("platform", platform.platform, "for the record"),
    ]


def _vllm() -> str:
    import vllm

    return f"{vllm.__version__}, built for {_device()}"


def _device() -> str:
    from vllm.platforms import current_platform

    return current_platform.device_type


def _name(path: str) -> str:
    module, _, name = path.partition(":")
    getattr(import_module(module), name)
    return path.replace(":", ".")


def _adapter(module) -> str | None:
    return f"{module.__name__}.{ADAPTER}" if hasattr(module, ADAPTER) else None


def _model(architecture: str) -> str | None:
    from vllm import ModelRegistry

    return architecture if architecture in ModelRegistry.get_supported_archs() else None


def _mtp_models() -> str | None:
    from vllm import ModelRegistry

    return ", ".join(sorted(name for name in ModelRegistry.get_supported_archs() if "MTP" in name)) or None


def _tree_attention() -> str | None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return "TREE_ATTN" if "TREE_ATTN" in AttentionBackendEnum.__members__ else None


def _distribution(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _entry_point() -> str | None:
    points = metadata.entry_points(group="vllm.general_plugins", name="ddtree")
    for point in points:
        point.load()
        return point.value
    return None


def _gpu() -> str | None:
    with nvidia.driver() as driver:
        found = driver.describe()
    return "; ".join(f"{gpu.get('name')}, driver {gpu.get('driver')}" for gpu in found) or None
