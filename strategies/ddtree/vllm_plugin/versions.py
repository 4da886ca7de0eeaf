"""The seams: what of vLLM the plugin builds on, by name and signature, and all that differs from version to version.

vLLM promises none of them. They are compared when the plugin loads, so that a release that moves one is refused with its
name instead of decoding something else.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from importlib import import_module

from torch import Tensor

from harness.errors import UserError

KNOWN = ("0.20.1", "0.32.0")

_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_DRAFTER = "vllm.v1.spec_decode.dflash:DFlashProposer"
_CPU_ATTENTION = "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl"
_FLASH_ATTENTION = "vllm.v1.attention.backends.flash_attn:FlashAttentionImpl"
_ATTENTION = ("layer", "query", "key", "value", "kv_cache", "attn_metadata", "output", "output_scale", "output_block_scale")
_UPDATE = ("layer", "key", "value", "kv_cache", "slot_mapping")


@dataclass(frozen=True)
class Seam:
    """``owner`` is ``module:Class``; ``parameters`` without ``self``, one tuple for each way a known version has it.

    ``why`` says what the plugin does there.
    """

    owner: str
    name: str
    parameters: tuple[tuple[str, ...], ...]
    why: str

    def fault(self) -> str | None:
        """What is wrong with this seam in the vLLM that is installed; ``None``: it is as known."""
        module, _, kind = self.owner.partition(":")
        try:
            found = getattr(getattr(import_module(module), kind), self.name)
        except ImportError as error:
            return f"{module} cannot be imported ({' '.join(str(error).split())})"
        except AttributeError:
            return f"{kind}.{self.name} is gone"
        names = tuple(inspect.signature(found).parameters)[1:]
        if names not in self.parameters:
            return f"{kind}.{self.name} takes ({', '.join(names)}) where ({', '.join(self.parameters[0])}) is known"
        return None


def seams(device: str) -> tuple[Seam, ...]:
    """The seams used on ``device`` (cpu or cuda)."""
    attention = _CPU_ATTENTION if device == "cpu" else _FLASH_ATTENTION
    proposed = (
        "target_token_ids", "target_positions", "target_hidden_states", "next_token_ids", "token_indices_to_sample",
        "common_attn_metadata", "sampling_metadata", "mm_embed_inputs", "num_rejected_tokens_gpu", "slot_mappings",
    )  # fmt: skip
    drafts = (
        "scheduler_output", "sampled_token_ids", "sampling_metadata", "hidden_states", "sample_hidden_states",
        "aux_hidden_states", "spec_decode_metadata", "common_attn_metadata", "slot_mappings",
    )  # fmt: skip
    shape = ("num_tokens", "num_reqs", "max_query_len", "num_tokens_padded", "num_reqs_padded", "ubatch_slices", "logits_indices")
    kind = ("use_spec_decode", "for_cudagraph_capture", "num_scheduled_tokens")
    metadata = (
        (*shape, "max_num_sampled_tokens", *kind, "slot_mappings"),  # 0.32
        (*shape, *kind, "cascade_attn_prefix_lens", "slot_mappings"),  # 0.20
    )
    execution = (
        "num_tokens", "num_reqs", "num_scheduled_tokens_np", "max_num_scheduled_tokens", "use_cascade_attn", "allow_microbatching",
        "force_eager", "force_uniform_decode", "force_has_lora", "force_num_active_loras", "num_encoder_reqs",
    )  # fmt: skip
    sampled = ("sampled_token_ids", "requests", "gpu_input_batch", "discard_request_mask")
    padded = ("common_attn_metadata", "spec_decode_metadata", "valid_sampled_tokens_count")
    return (
        Seam(_RUNNER, "_prepare_inputs", (("scheduler_output", "num_scheduled_tokens"),), "positions of a tree's rows"),
        Seam(_RUNNER, "_build_attention_metadata", metadata, "tells attention layers of the trees"),
        Seam(_RUNNER, "_determine_batch_execution_and_padding", (execution,), "keeps steps that are not all trees from captured passes"),
        Seam(_RUNNER, "capture_model", ((),), "records the plugin's own work beside vLLM's"),
        Seam(_RUNNER, "_sample", (("logits", "spec_decode_metadata"),), "walks the trees and commits the accepted rows"),
        Seam(_RUNNER, "sample_tokens", (("grammar_output",),), "forgets the step's trees when it is over"),
        Seam(_RUNNER, "propose_draft_token_ids", (drafts,), "hands accepted rows to the drafter and grows the next trees"),
        Seam(_DRAFTER, "__init__", (("vllm_config", "device", "runner"),), "a block's own length, beside the node budget"),
        Seam(_DRAFTER, "propose", (proposed, ("num_speculative_tokens", *proposed)), "a block's own length"),
        Seam(_DRAFTER, "prepare_next_token_ids_padded", (sampled,), "a replayed step has the next tokens"),
        Seam(_DRAFTER, "prepare_inputs_padded", (padded,), "a replayed step knows how many rows are rejected"),
        Seam(_DRAFTER, "_greedy_sample", (("hidden_states",),), "takes the slots' logits before arg-max"),
        Seam(attention, "forward", (_ATTENTION,), "each row of a tree sees context, ancestors and itself"),
        Seam(attention, "do_kv_cache_update", (_UPDATE,), "has new rows in the cache before forward; CPU: puts accepted rows in place"),
    )


def check_seams(device: str) -> None:
    """Raise ``UserError`` naming the first seam that is not as known."""
    import vllm

    for seam in seams(device):
        if fault := seam.fault():
            raise UserError(f"DDTree on vLLM {vllm.__version__}: {fault}; known are vLLM {' and '.join(KNOWN)}")


def flash_cache(cache: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Keys and values ``[blocks, block, kv_heads, head_dim]`` of FlashAttention's cache, which is

    ``[2, blocks, block, kv_heads, head_dim]`` in 0.20 and ``[blocks, kv_heads, block, 2 * head_dim]`` in 0.32.
    """
    return cache.unbind(0) if cache.dim() == 5 else cache.transpose(1, 2).split(head_dim, dim=-1)


def speculative_copy(vllm_config, places: int):
    """``vllm_config`` with another number of speculative tokens, everything else shared."""
    config = copy.copy(vllm_config)
    config.speculative_config = copy.copy(vllm_config.speculative_config)
    config.speculative_config.num_speculative_tokens = places
    return config
