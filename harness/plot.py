"""The picture of a run: speedups with their intervals, what rounds accepted, and how prompts differ."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.colours import colours

LABELS = 1.9  # the room for the words behind the longest bar, as a factor
LEGEND_LINE = 0.05  # of the axes' height


def draw(summary: Mapping[str, Mapping[str, Any]], categories: Mapping[str, str], title: str) -> bytes:
    """A PNG. ``categories`` maps each prompt to its kind."""
    shades = colours(summary)
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    speed, accepted, prompts = figure.subplots(1, 3, width_ratios=(1.1, 1, 1.3))
    _draw_speedups(speed, summary, shades)
    _draw_accepted(accepted, summary, shades)
    _draw_prompts(prompts, summary, categories, shades)
    for axes in (speed, accepted, prompts):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=140)
    return picture.getvalue()


def _draw_speedups(axes: Axes, summary: Mapping, shades: Mapping[str, str]) -> None:
    # A strategy whose every answer came in one piece has no speed.
    measured = {name: f for name, f in summary.items() if f["speedup"] and f["decode_tokens_per_s"]}
    shown = [(name, f["speedup"], f["decode_tokens_per_s"]) for name, f in measured.items()]
    # An interval of two or three prompts can reach far beyond every bar; it is cut at the edge, not the bars.
    edge = LABELS * max((min(high or value, 2 * value) for _, (value, _, high), _ in shown), default=1)
    for row, (name, (value, low, high), speed) in enumerate(shown):
        axes.barh(row, value, color=shades[name], height=0.6, alpha=0.85)
        right = value
        if low is not None and low < high:
            axes.errorbar(value, row, xerr=[[value - low], [high - value]], color="black", capsize=4, lw=1.2)
            right = min(high, edge / LABELS)
        words = f"{value:.2f}×" if speed is None else f"{value:.2f}×  ({speed:.{speed < 1000:d}f} tok/s)"  # one token has no speed
        axes.annotate(words, (right, row), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(shown)), [name for name, *_ in shown])
    axes.invert_yaxis()
    axes.axvline(1, color="black", lw=0.8, ls=":")
    axes.set_xlim(0, edge)
    axes.set_xlabel("speedup over the baseline, 95 % interval")
    axes.set_title("Decode speed", loc="left", fontsize=10)


def _draw_accepted(axes: Axes, summary: Mapping, shades: Mapping[str, str]) -> None:
    drafting = {name: f for name, f in summary.items() if len(f["accepted_histogram"]) > 1}
    width = 0.8 / max(len(drafting), 1)
    for i, (name, figures) in enumerate(drafting.items()):
        counts = np.array(figures["accepted_histogram"])
        where = np.arange(len(counts)) + (i - (len(drafting) - 1) / 2) * width
        label = f"{name}: {figures['acceptance_length']:.2f} tokens a round"
        axes.bar(where, counts / counts.sum(), width, color=shades[name], label=label)
    if drafting:
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(top=axes.get_ylim()[1] / max(0.3, 0.95 - LEGEND_LINE * len(drafting)))
        axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel("drafted tokens accepted in a round")
    axes.set_ylabel("share of rounds")
    axes.set_title("Acceptance", loc="left", fontsize=10)


def _draw_prompts(axes: Axes, summary: Mapping, categories: Mapping[str, str], shades: Mapping[str, str]) -> None:
    kinds = sorted(set(categories.values()))
    compared = [name for name, f in summary.items() if f["speedup"] and f["speedup"] != [1.0, 1.0, 1.0]]
    for i, name in enumerate(compared):
        offset = (i - (len(compared) - 1) / 2) * 0.7 / max(len(compared), 1)
        points = [(v, kinds.index(categories[p]) + offset) for p, v in summary[name]["speedup_by_prompt"].items()]
        if points:
            axes.scatter(*zip(*points), s=18, color=shades[name], alpha=0.75, lw=0)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_ylim(max(len(kinds), 1) - 0.5, -0.5)
    axes.axvline(1, color="black", lw=0.8, ls=":")
    axes.grid(axis="x", alpha=0.25)
    axes.set_xlabel("speedup of each prompt, coloured as the strategies")
    axes.set_title("Prompts", loc="left", fontsize=10)
