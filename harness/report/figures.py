"""The report's figures: each takes a ``Subject`` and returns a matplotlib figure, ``None`` if there is nothing to draw.

They are narrow, with letters large enough that a page on a phone shows them whole and legible.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from harness import metrics
from harness.report import curves
from harness.report.subject import Reported, Subject
from harness.report.tables import PHASES

Colour = tuple[float, float, float]

WIDTH = 5.4
STYLES = ("-", "--", ":", "-.")
MARKERS = "os^Dv"
# None of a strategy's colours; Tol's muted scheme, with pale blue for the phase that should be most of a round.
PHASE_COLOURS = ("#332288", "#ddcc77", "#b9cbdc", "#882255", "#ffffff")


def canvas(height: float, rows: int = 1, columns: int = 1, **options) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel().tolist()
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.set_axisbelow(True)
    return figure, axes


def _lines(subject: Subject, drafting_only: bool = False) -> list[tuple[Reported, str]]:
    """Every strategy of every run that has a finished answer, run by run."""
    found = [(run, name) for run in subject.runs for name in run.figures if run.requests(name)]
    return [(run, name) for run, name in found if len(run.figures[name]["accepted_histogram"]) > 1 or not drafting_only]


def _style(subject: Subject, run: Reported) -> str:
    return STYLES[subject.runs.index(run) % len(STYLES)]


def _shade(subject: Subject, run: Reported, strategy: str) -> Colour:
    """The strategy's colour; of more runs than there are line styles the first is pale and the last is full."""
    paleness = 1 - subject.runs.index(run) / (len(subject.runs) - 1) if len(subject.runs) > len(STYLES) else 0
    return _pale(subject.colour(strategy), paleness)


def marked(number: int) -> dict[str, Any]:
    """How the line of that number is told from the others, beside its colour."""
    return {"ls": STYLES[number % len(STYLES)], "marker": MARKERS[number % len(MARKERS)], "ms": 5}


def _pale(colour: str, paleness: float) -> Colour:
    """``colour`` at 0, two thirds of the way to white at 1."""
    red, green, blue = to_rgb(colour)
    return tuple(part + (1 - part) * paleness * 2 / 3 for part in (red, green, blue))


def legend(figure: Figure, axes: Axes) -> None:
    """Below the axes, so that no line hides it; a long one makes the figure higher."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(len(labels), 66 // (max(map(len, labels)) + 6)))
    figure.set_figheight(figure.get_figheight() + 0.19 * max(0, -(-len(labels) // columns) - 3))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def speedups(subject: Subject) -> Figure | None:
    """A bar a strategy with its 95 % interval; the dotted line is the baseline."""
    shown = [(run, name) for run, name in _lines(subject) if run.figures[name]["speedup"] and name != run.baseline]
    if not shown:
        return None
    figure, (axes,) = canvas(0.9 + 0.45 * len(shown))
    for row, (run, name) in enumerate(shown):
        value, low, high = run.figures[name]["speedup"]
        axes.barh(row, value, color=subject.colour(name), height=0.62)
        if low is not None:
            axes.errorbar(value, row, xerr=[[value - low], [high - value]], color="black", capsize=4, lw=1.3)
        axes.annotate(f"{value:.2f}×", (max(value, high or 0), row), (7, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(shown)), [subject.full_name(run, name) for run, name in shown])
    axes.invert_yaxis()
    axes.axvline(1, color="black", lw=1, ls=":")
    axes.set_xlim(0, 1.16 * max(max(v for v in run.figures[name]["speedup"] if v is not None) for run, name in shown))
    axes.set_xlabel("speedup over the baseline")
    return figure


def prompts(subject: Subject) -> Figure | None:
    """A dot for each prompt's own speedup, in a row for each kind of prompt."""
    compared = [(run, name) for run, name in _lines(subject) if name != run.baseline]
    shown = [(run, name) for run, name in compared if run.figures[name]["speedup_by_prompt"]]
    if not shown:
        return None
    kinds = sorted({cell.category for run in subject.runs for cell in run.cells})
    figure, (axes,) = canvas(1.3 + 0.42 * len(kinds))
    for number, (run, name) in enumerate(shown):
        kind = {cell.key.prompt: kinds.index(cell.category) for cell in run.cells}
        offset = (number - (len(shown) - 1) / 2) * 0.7 / len(shown)
        points = [(speed, kind[prompt] + offset) for prompt, speed in run.figures[name]["speedup_by_prompt"].items()]
        marker = MARKERS[subject.runs.index(run) % len(MARKERS)]
        style = {"marker": marker, "color": _shade(subject, run, name), "label": subject.name(run, name)}
        axes.scatter(*zip(*points), s=22, alpha=0.8, lw=0, **style)
    for border in np.arange(len(kinds) - 1) + 0.5:
        axes.axhline(border, color="#dddddd", lw=0.6)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.axvline(1, color="black", lw=1, ls=":")
    axes.set_xlabel("speedup of a prompt over the baseline")
    legend(figure, axes)
    return figure


def histogram(subject: Subject) -> Figure | None:
    """Share of rounds by how many drafted tokens they accepted: a row of bars for each strategy, on one scale."""
    shown = _lines(subject, drafting_only=True)
    if not shown:
        return None
    figure, panels = canvas(0.7 + 1.15 * len(shown), rows=len(shown), sharex=True, sharey=True)
    for axes, (run, name) in zip(panels, shown):
        counts = np.array(run.figures[name]["accepted_histogram"])
        axes.bar(range(len(counts)), counts / counts.sum(), 0.8, color=subject.colour(name))
        length = run.figures[name]["acceptance_length"]
        title = f"{subject.full_name(run, name)}: {length:.2f} tokens a round, {counts.sum():,} rounds"
        axes.set_title(title, loc="left", fontsize=9.5)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[-1].set_xlabel("drafted tokens accepted in a round")
    figure.supylabel("share of rounds", fontsize=10)
    return figure


def by_depth(subject: Subject) -> Figure | None:
    """On the left P(depth d accepted | d - 1 accepted), on the right P(depth d accepted)."""
    shown = _lines(subject, drafting_only=True)
    if not shown:
        return None
    figure, panels = canvas(3.3, columns=2, sharey=True)
    for run, name in shown:
        for axes, key in zip(panels, ("acceptance_by_depth", "acceptance_to_depth")):
            values, style = run.figures[name][key], _style(subject, run)
            depths = range(1, len(values) + 1)
            label = subject.name(run, name)
            axes.plot(depths, values, style, marker="o", ms=4, color=_shade(subject, run, name), label=label)
    for axes, title in zip(panels, ("once the depth before was", "at all")):
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("depth in the draft")
        axes.set_ylim(0, 1.03)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("accepted")
    legend(figure, panels[0])
    return figure


def latencies(subject: Subject) -> Figure | None:
    """Empirical distribution functions of TPOT and of TTFT over answers."""
    figure, panels = canvas(3.4, columns=2, sharey=True)
    drawn = False
    for run, name in _lines(subject):
        requests = run.requests(name)
        tpot = [seconds for seconds in map(metrics.tpot_s, requests) if seconds is not None]
        for axes, values in zip(panels, (tpot, [d.ttft_s for d in requests])):
            if values:
                drawn = True
                options = {"color": _shade(subject, run, name), "ls": _style(subject, run), "lw": 1.8}
                axes.ecdf(1000 * np.array(values), label=subject.name(run, name), **options)
    for axes, title in zip(panels, ("time per output token (TPOT)", "time to first token (TTFT)")):
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("ms")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    panels[0].set_ylabel("share of answers")
    if not drawn:
        return None
    legend(figure, panels[1])
    return figure


def round_times(subject: Subject) -> Figure | None:
    """A mean round of every strategy, cut into its phases; ``None`` when no strategy had all of them timed."""
    shown = [(run, name) for run, name in _lines(subject) if run.figures[name]["mean_round"].get("host_s") is not None]
    if not shown:
        return None
    figure, (axes,) = canvas(1.35 + 0.45 * len(shown))
    left = np.zeros(len(shown))
    for (key, title), colour in zip(PHASES.items(), PHASE_COLOURS):
        widths = np.array([1000 * max(run.figures[name]["mean_round"][key], 0) for run, name in shown])
        axes.barh(range(len(shown)), widths, 0.62, left, color=colour, edgecolor="#57606a", lw=0.4, label=title)
        left += widths
    for row, (run, name) in enumerate(shown):
        tokens = run.figures[name]["acceptance_length"]
        place = {"xy": (left[row], row), "xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(f"{left[row]:.1f} ms, {tokens:.2f} tok", fontsize=9, **place)
    axes.set_yticks(range(len(shown)), [subject.name(run, name) for run, name in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * left.max())
    axes.set_xlabel("a mean round, ms")
    legend(figure, axes)
    return figure


def budgets(subject: Subject) -> Figure | None:
    """Acceptance length and speedup (speed where there is none) against node budget; ``None`` with fewer than two."""
    points = [(run, name) for run, name in _lines(subject) if run.budget(name) is not None and run.figures[name]["acceptance_length"]]
    if len({run.budget(name) for run, name in points}) < 2:
        return None
    figure, (accepted, speed) = canvas(3.4, columns=2)
    ratios = all(run.figures[name]["speedup"] for run, name in points)
    lines = curves.by_budget(points)
    for number, (label, members) in enumerate(lines):
        members.sort(key=lambda member: member[0].budget(member[1]))
        colour = _pale(subject.colour(members[0][1]), number / len(lines))
        style = {"color": colour, **marked(number)}
        where = [run.budget(name) for run, name in members]
        accepted.plot(where, [run.figures[name]["acceptance_length"] for run, name in members], label=label, **style)
        if ratios:
            value, low, high = np.array([run.figures[name]["speedup"] for run, name in members], dtype=float).T
            beside = np.array(where) * 2 ** (0.07 * (number - (len(lines) - 1) / 2))  # no interval hides another
            speed.errorbar(beside, value, [value - low, high - value], capsize=3, **style)
        else:
            speed.plot(where, [run.figures[name]["decode_tokens_per_s"] for run, name in members], **style)
    accepted.set_ylabel("acceptance length, tokens a round")
    speed.set_ylabel("speedup over the baseline" if ratios else "decode speed, token/s")
    for axes in (accepted, speed):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({run.budget(name) for run, name in points}))
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_ylim(0, 1.08 * axes.dataLim.y1)
        axes.set_xlabel("node budget")
        axes.grid(alpha=0.25)
    legend(figure, accepted)
    return figure
