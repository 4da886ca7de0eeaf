"""Stand-ins for those modules of vLLM that the DDTree plugin builds on with a GPU, so that it can be imported without vLLM."""

import importlib
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import torch

OURS = "strategies.ddtree.vllm_plugin"
DEPENDENT = (f"{OURS}.flash_attention", f"{OURS}.proposer", f"{OURS}.runner", f"{OURS}.replaying", "strategies.dflash.vllm_worker")


class StockImpl:
    """vLLM's attention, as far as the plugin touches it."""

    def __init__(self, head_size: int) -> None:
        self.scale, self.head_size = head_size**-0.5, head_size

    def forward(self, layer, query, key, value, cache, metadata, output, output_scale=None, output_block_scale=None):
        output.fill_(7.0)


class StockBuilder:
    """vLLM's maker of metadata: says whether it was asked to leave the schedule out."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return fast_build


class StockDrafter:
    """vLLM's proposer: its ``propose`` ends with arg-maxes of the slots' hidden states."""

    def __init__(self, vllm_config, device, runner) -> None:
        self.device = device
        self.positions, self._slot_mapping_buffer = torch.zeros(2, 8, dtype=torch.int64)

    def propose(self, hidden_states):
        return self._greedy_sample(hidden_states).view(-1, self.slots)


class StockPages:
    """vLLM's keeper of cache pages: gives back what it was asked."""

    def allocate_slots(self, request, num_new_tokens, num_lookahead_tokens=0, delay_cache_blocks=False):
        return request, num_new_tokens, num_lookahead_tokens, delay_cache_blocks


@dataclass
class SamplerOutput:
    sampled_token_ids: torch.Tensor
    logprobs_tensors: object


MODULES = {
    "vllm": {}, "vllm.v1": {}, "vllm.v1.attention": {}, "vllm.v1.attention.backends": {}, "vllm.v1.spec_decode": {}, "vllm.v1.worker": {},
    "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: True)},
    "vllm.v1.worker.cpu_worker": {"CPUWorker": type("CPUWorker", (), {})},
    "vllm.v1.core": {}, "vllm.v1.core.kv_cache_manager": {"KVCacheManager": StockPages},
    "vllm.v1.outputs": {"SamplerOutput": SamplerOutput},
    "vllm.v1.spec_decode.dflash": {"DFlashProposer": StockDrafter},
    "vllm.v1.attention.backend": {"AttentionCGSupport": SimpleNamespace(NEVER="never", UNIFORM_BATCH="uniform")},
    "vllm.v1.attention.backends.flash_attn": {
        "FlashAttentionBackend": type("Backend", (), {}), "FlashAttentionImpl": StockImpl,
        "FlashAttentionMetadataBuilder": StockBuilder,
    },
}  # fmt: skip


@contextmanager
def plugin():
    """The plugin's modules ``flash_attention``, ``runner`` and ``replaying``, imported over the stand-ins."""
    usual = {name: module for name, module in sys.modules.items() if name == "vllm" or name.startswith("vllm.") or name in DEPENDENT}
    for name in usual:
        del sys.modules[name]
    for name, members in MODULES.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(members)
    try:
        yield SimpleNamespace(**{name: importlib.import_module(f"{OURS}.{name}") for name in ("flash_attention", "runner", "replaying")})
    finally:
        for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.") or name in DEPENDENT]:
            del sys.modules[name]
        sys.modules.update(usual)
