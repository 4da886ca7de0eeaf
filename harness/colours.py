"""A colour a strategy, the same in a run's plot and in a report, told apart by most colour-blind readers."""

from __future__ import annotations

from collections.abc import Collection, Iterable

GREY = "#5b6470"
SHIPPED = {"baseline": GREY, "mtp": "#0072b2", "dflash": "#e69f00", "ddtree": "#009e73"}
# What is left of Okabe and Ito's colours, then others unlike them.
OTHERS = ("#cc79a7", "#d55e00", "#56b4e9", "#8c564b", "#999933", "#7f3fbf", "#1a1a1a")


def colours(strategies: Iterable[str], baselines: Collection[str] = ()) -> dict[str, str]:
    """The shipped strategies always have theirs; others take what is left in their order, again from the first after the last."""
    left = iter(OTHERS * 99)
    fixed = SHIPPED | dict.fromkeys(baselines, GREY)
    return {name: fixed[name] if name in fixed else next(left) for name in strategies}
