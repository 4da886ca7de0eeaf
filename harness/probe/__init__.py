"""What this machine's engines can run, found out by importing for real."""

from harness.probe.rows import Row, look

__all__ = ["Row", "look"]
