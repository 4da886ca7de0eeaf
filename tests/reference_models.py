"""Transformers' own models filled with the tensors that our loader read: what outputs and logits are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch

from harness.models import smollm2
from harness.models.dense import build
from harness.models.weights import load_checkpoint


def transformers_llama(checkpoint):
    """LlamaForCausalLM in fp32 with the checkpoint's sizes and tensors. Only plain RoPE."""
    import transformers

    c = checkpoint.config
    config = transformers.LlamaConfig(
        hidden_size=c.hidden_size, num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads, head_dim=c.head_dim, intermediate_size=c.intermediate_size,
        vocab_size=c.vocab_size, max_position_embeddings=c.context_length, rms_norm_eps=c.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta}, tie_word_embeddings=c.tied_head,
        bos_token_id=None, eos_token_id=list(c.end_tokens),
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    tensors = {name: tensor.float() for name, tensor in checkpoint.tensors.items()}
    if c.tied_head:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are no part of the state dict
    return model.eval()


def smollm2_pair() -> SimpleNamespace:
    """SmolLM2 in fp32, ours and Transformers'."""
    checkpoint = load_checkpoint(smollm2.fetch())
    ours = build(checkpoint.config, checkpoint.tensors, torch.float32, "cpu")
    return SimpleNamespace(checkpoint=checkpoint, ours=ours, theirs=transformers_llama(checkpoint))


@torch.no_grad()
def generate(model, prompt: Sequence[int], count: int, ends: Sequence[int] = ()) -> list[int]:
    """Greedy output of Transformers' ``generate``, its end token kept."""
    ids = torch.tensor([list(prompt)], device=model.device)
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
        eos_token_id=list(ends) or None, pad_token_id=0,
    )  # fmt: skip
    return output[0, len(prompt) :].tolist()


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference over the largest magnitude, by row, the worst row."""
    return float(((found - wanted).abs().amax(-1) / wanted.abs().amax(-1)).max())
