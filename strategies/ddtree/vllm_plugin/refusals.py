"""What the plugin does not cover: of an engine it is refused at the start, of a request it makes the request a chain."""

from __future__ import annotations

from harness.errors import UserError
from strategies.ddtree.vllm_plugin import full_graphs


def refuse(vllm_config) -> None:
    """Raise ``UserError`` naming what of this configuration the plugin does not cover."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method != "dflash":
        method = speculative.method if speculative else None
        raise UserError(f"DDTree on vLLM drafts with DFlash, not with method {method!r}; set speculative_config.method to dflash")
    budget = (vllm_config.additional_config or {}).get("ddtree", {}).get("budget")
    if not isinstance(budget, int) or not 1 <= budget <= speculative.num_speculative_tokens:
        raise UserError(
            f'additional_config {{"ddtree": {{"budget": {budget}}}}}: the node budget is a whole number from 1 to '
            f"speculative_config.num_speculative_tokens, {speculative.num_speculative_tokens}"
        )
    full = full_graphs(vllm_config)
    if full not in (True, False) or (full and budget < speculative.num_speculative_tokens):
        raise UserError(
            f'additional_config {{"ddtree": {{"full_graphs": {full}}}}}: true or false, and true only with a node budget of '
            f"speculative_config.num_speculative_tokens, {speculative.num_speculative_tokens}, at least the drafter's block less one"
        )
    uncovered = {
        "prefix caching": (cache.enable_prefix_caching, "set enable_prefix_caching to false"),
        "async scheduling": (vllm_config.scheduler_config.async_scheduling, "set async_scheduling to false"),
        f"the cache type {cache.cache_dtype}": (_quantised(cache.cache_dtype), "leave kv_cache_dtype at auto"),
        "latent attention (MLA)": (model.use_mla, "use engine=torch or another model"),
        "recurrent layers (a hybrid model)": (model.is_hybrid, "use another model"),
        "sliding-window attention": (_windowed(model), "use another model"),
        "positions of several dimensions (M-RoPE)": (model.uses_mrope, "use another model"),
        "an encoder": (model.is_encoder_decoder, "use another model"),
        "several devices": (parallel.world_size_across_dp > 1, "use one device for one engine"),
        "LoRA adapters": (vllm_config.lora_config is not None, "leave them out"),
        "a remote cache": (vllm_config.kv_transfer_config is not None, "leave kv_transfer_config out"),
        "probabilistic drafts": (getattr(speculative, "draft_sample_method", "greedy") != "greedy", "leave draft_sample_method at greedy"),
    }
    for what, (found, way_out) in uncovered.items():
        if found:
            raise UserError(f"DDTree on vLLM does not cover {what}; {way_out}")


def refuse_layers(layers, attention: type) -> None:
    """Raise ``UserError`` unless every target layer in ``layers`` (by name) runs on the plugin's ``attention`` as it is."""
    for name, layer in layers.items():
        impl = layer.impl
        if not isinstance(impl, attention):
            raise UserError(f"DDTree on vLLM: layer {name} runs on {type(impl).__name__}; choose the attention backend {attention.BACKEND}")
        special = {"ALiBi": impl.alibi_slopes, "soft-capped logits": impl.logits_soft_cap, "attention sinks": impl.sinks}
        special["shared caches"] = impl.kv_sharing_target_layer_name
        for what, value in special.items():
            if hasattr(value, "shape") or value:
                raise UserError(f"DDTree on vLLM does not cover {what} (layer {name}); use another model")


def needs_chain(params) -> str | None:
    """What a request (its ``SamplingParams``) asks for that only vLLM's own chain verification gives; ``None``: nothing."""
    asked = {
        "logprobs": params.logprobs is not None,
        "prompt_logprobs": params.prompt_logprobs is not None,
        "repetition_penalty": params.repetition_penalty != 1,
    }
    plain = ("presence_penalty", "frequency_penalty", "min_p", "min_tokens", "logit_bias", "bad_words", "allowed_token_ids")
    asked |= {name: bool(getattr(params, name)) for name in (*plain, "structured_outputs", "extra_args")}
    return next((name for name, wanted in asked.items() if wanted), None)


def _quantised(dtype: str) -> bool:
    return str(dtype).startswith(("fp8", "int8", "nvfp4", "turboquant"))


def _windowed(model) -> bool:
    kinds = getattr(model.hf_text_config, "layer_types", None) or ()
    return bool(model.get_sliding_window()) or any(kind != "full_attention" for kind in kinds)
