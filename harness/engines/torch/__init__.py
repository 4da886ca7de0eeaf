"""The embedded engine, for Hydra's ``_target_``."""

from harness.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine"]
