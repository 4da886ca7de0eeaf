"""How much faster is a decoding strategy, and does it still say the same? ``python -m harness --help``."""

import os

# Threads that spin while they wait take turns with any other busy process: on 2 cores, one such process cut decoding from
# 17 tokens/s to 1. Threads that sleep at once cost a third of the speed on an idle machine (33 -> 23 tokens/s). A short
# spin, then sleep, has neither fault. It must be set before an engine loads its OpenMP library, so it is set here.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def load(folder):
    """A run's folder as a ``harness.loading.Run``: cells, rounds and samples as DataFrames, and what else lies there."""
    from harness.loading import load  # pandas only for those who ask

    return load(folder)
