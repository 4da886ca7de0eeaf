"""vLLM as an engine: every strategy in a process of its own, all with the same settings."""

from harness.engines.vllm.engine import VLLMEngine

__all__ = ["VLLMEngine"]
