"""Suites: fixed, checksummed lists of prompts. ``load(cfg)`` is the way in."""

from harness.suites.catalogue import HUB_SUITES, SUITES
from harness.suites.selection import Row, Suite, SuiteConfig, load

__all__ = ["HUB_SUITES", "SUITES", "Row", "Suite", "SuiteConfig", "load"]
