"""Any server that answers the OpenAI API, for Hydra's ``_target_``."""

from harness.engines.openai.engine import OpenAIEngine

__all__ = ["OpenAIEngine"]
