"""vLLM's own DFlash with faults put right where they are found. Nothing crashes with them: drafts are worse.

- vLLM 0.20 takes ``target_layer_ids`` for numbers of the layers before the ones that a checkpoint means, so that a drafter reads
  features that it was not trained on.
- vLLM 0.32 norms the context's keys of all drafter layers in one call, with a row of weights a layer; its CPU kernel reads the
  first row for every layer.
- vLLM 0.20 gives a request no pages for its first drafts, and one place too few for later ones. Rows of the drafter's block behind the
  last page are then written to a page that all requests share: of two requests that begin in one step one drafts from the other's.
"""

from __future__ import annotations

from functools import wraps

import torch
import torch.nn.functional as F
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_manager import KVCacheManager

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class DFlashWorker(Worker):
    """vLLM's worker; ``speculative_config.method`` is ``dflash``."""

    def load_model(self, *args, **kwargs) -> None:
        repair_taps(self.model_runner)
        super().load_model(*args, **kwargs)
        repair_loaded(self.model_runner)


def repair_taps(runner) -> bool:
    """Have the target's features taken behind the layers that the drafter names, if they are not; whether there was anything to do.

    To be called before the runner loads its models. vLLM counts the embedding as 0 and the output of layer i as i + 1.
    """
    config = runner.speculative_config.draft_model_config.hf_config
    if getattr(config, "eagle_aux_hidden_state_layer_ids", None):  # vLLM's own numbers, which it takes as they are
        return False
    behind = [layer + 1 for layer in config.dflash_config["target_layer_ids"]]
    if list(runner._get_eagle3_aux_layers_from_config()) == behind:
        return False
    config.eagle_aux_hidden_state_layer_ids = behind
    return True


def repair_loaded(runner) -> None:
    """What is to be repaired when the runner's models are loaded."""
    repair_key_norms(runner.drafter)
    repair_lookahead(runner)


@torch.inference_mode()
def repair_key_norms(proposer) -> bool:
    """Have every layer's context keys normed with its own weights, if they are not; whether there was anything to do.

    ``proposer`` is vLLM's, with its models loaded.
    """
    drafter = proposer.model.model
    if proposer.device.type != "cpu" or not hasattr(drafter, "_normalize_context_k"):  # as in 0.20, where each layer is normed by itself
        return False
    weights, eps = drafter._k_norm_weights, drafter._rms_norm_eps

    def each_layer(keys: torch.Tensor) -> torch.Tensor:
        """``keys`` ``[layers, rows, kv_heads, head_dim]``."""
        return torch.stack([F.rms_norm(key, key.shape[-1:], weight, eps) for key, weight in zip(keys, weights, strict=True)])

    shape = (len(weights), 1, drafter._num_kv_heads, drafter._head_dim)
    sample = torch.linspace(-1, 1, drafter._num_kv_heads * drafter._head_dim).expand(shape[0], -1).reshape(shape).to(weights[0])
    if torch.allclose(drafter._normalize_context_k(sample.contiguous()), each_layer(sample), rtol=0.05, atol=0.05):
        return False
    drafter._normalize_context_k = each_layer
    return True


def repair_lookahead(runner) -> bool:
    """Have requests given pages for the drafter's next block, if they are not; whether there was anything to do.

    Reaches the scheduler of this process: with one GPU, vLLM has both in one.
    """
    if hasattr(runner.vllm_config, "num_lookahead_tokens"):  # as in 0.32, whose scheduler counts a block's rows
        return False
    rows, usual = 1 + runner.drafter.num_speculative_tokens, KVCacheManager.allocate_slots

    @wraps(usual)
    def with_room(self, *args, delay_cache_blocks: bool = False, **told):
        if not delay_cache_blocks:  # pages whose contents are still on their way from elsewhere must not be more than those contents
            told["num_lookahead_tokens"] = max(told.get("num_lookahead_tokens", 0), rows)
        return usual(self, *args, delay_cache_blocks=delay_cache_blocks, **told)

    KVCacheManager.allocate_slots = with_room
    return True
