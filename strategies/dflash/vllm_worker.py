"""vLLM's own DFlash with two faults put right where they are found. Nothing crashes with them: drafts are worse.

- vLLM 0.20 takes ``target_layer_ids`` for numbers of the layers before the ones that a checkpoint means, so that a drafter reads
  features that it was not trained on.
- vLLM 0.32 norms the context's keys of all drafter layers in one call, with a row of weights a layer; its CPU kernel reads the
  first row for every layer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from vllm.platforms import current_platform

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class DFlashWorker(Worker):
    """vLLM's worker; ``speculative_config.method`` is ``dflash``."""

    def load_model(self, *args, **kwargs) -> None:
        repair_taps(self.model_runner)
        super().load_model(*args, **kwargs)
        repair_key_norms(self.model_runner.drafter)


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
