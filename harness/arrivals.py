"""When requests arrive that do not wait for one another. Pure: the schedule is a function of rate, count and seed."""

from __future__ import annotations

import numpy as np


def poisson_arrivals_s(rate: float, count: int, seed: int) -> list[float]:
    """``count`` arrival times of a Poisson process of ``rate`` arrivals a second, the first at 0 [s].

    The gaps between arrivals are independent and exponential with mean 1 / rate.
    """
    gaps = np.random.default_rng(seed).exponential(1 / rate, max(count - 1, 0))
    return [0.0, *np.cumsum(gaps).tolist()][:count]
