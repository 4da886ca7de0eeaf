"""Bugs planted on purpose, and what catches them: ``python -m benchmarks.mutants``."""

from __future__ import annotations

from benchmarks.mutants.decoding import DECODING
from benchmarks.mutants.drafting import DRAFTING
from benchmarks.mutants.figures import FIGURES
from benchmarks.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (*DECODING, *DRAFTING, *FIGURES)
