"""Suites: fixed, checksummed lists of prompts. ``load(cfg)`` is the way in."""

from harness.suites.catalogue import SUITES
from harness.suites.selection import Row, Suite, SuiteConfig, load

__all__ = ["SUITES", "Row", "Suite", "SuiteConfig", "load"]
