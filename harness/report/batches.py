"""Several requests at once: what whole batches do, and the batch at which drafting stops paying."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness import aggregate
from harness.report import curves, figures, tables
from harness.report.subject import Reported, Subject
from harness.table import BATCH_COLUMNS


def of(run: Reported, strategy: str) -> dict[str, Any]:
    """A strategy's figures with those of whole batches, also where each request was a batch of its own."""
    found = run.figures[strategy]
    return {**found, **aggregate.of_one(found)} if run.batch == 1 and not run.load else found


def table(subject: Subject) -> pd.DataFrame:
    """A row for each strategy of each run; empty where every request ran alone."""
    if not any(run.batch > 1 for run in subject.runs):
        return pd.DataFrame()
    rows = (
        {"strategy": subject.full_name(run, name), **tables.texts(BATCH_COLUMNS, of(run, name))}
        for run in subject.runs
        for name in run.figures
    )
    return pd.DataFrame(rows)


def crossings(subject: Subject) -> list[dict[str, Any]]:
    """For each strategy measured in several batches: ``batches``, the aggregate ``speedups`` there, and where they cross 1."""
    found = []
    for _, line in _curves(subject):
        run, name = line[0]
        if name == run.baseline or not all(of(*point)["aggregate_speedup"] for point in line):
            continue
        speedups: dict[int, list[float]] = {}
        for point in line:
            speedups.setdefault(of(*point)["batch_size"], []).append(of(*point)["aggregate_speedup"][0])
        by_batch = {batch: geometric_mean(speedups[batch]) for batch in sorted(speedups)}
        about = {"strategy": name, "model": run.config["model"]["name"], "suite": run.config["suite"]["name"]}
        about |= {"batches": list(by_batch), "speedups": list(by_batch.values())}
        found.append({**about, "crosses_1_at": aggregate.crossings(by_batch)})
    return found


def sentences(subject: Subject) -> list[str]:
    """The same for people."""
    return [_sentence(found) for found in crossings(subject)]


def _sentence(found: dict[str, Any]) -> str:
    first, *_, last = found["batches"]
    where = ", ".join(f"{batch:.1f}" for batch in found["crosses_1_at"])
    said = f"at a batch of {where} (between measured ones by its logarithm)" if where else f"not within {first}..{last}"
    each = ", ".join(f"{speedup:.2f}× at {batch}" for batch, speedup in zip(found["batches"], found["speedups"]))
    return f"{found['strategy']} ({found['model']}, {found['suite']}): the aggregate speedup crosses 1 {said}: {each}"


def figure(subject: Subject) -> Figure | None:
    """Aggregate speed and speedup against the batch; ``None`` with fewer than two batches."""
    lines = _curves(subject)
    if not lines:
        return None
    drawn, (speed, ratio) = figures.canvas(3.4, columns=2)
    for number, (label, line) in enumerate(lines):
        line.sort(key=lambda point: of(*point)["batch_size"])
        run, name = line[0]
        where = np.array([of(*point)["batch_size"] for point in line])
        style = {"color": subject.colour(name), **figures.marked(number)}
        speed.plot(where, [of(*point)["aggregate_tokens_per_s"] for point in line], label=label, **style)
        estimates = [of(*point)["aggregate_speedup"] for point in line]
        if name != run.baseline and all(estimates):
            value, low, high = np.array(estimates, dtype=float).T
            ratio.errorbar(where, value, [value - low, high - value], capsize=3, **style)
    ratio.axhline(1, color="black", lw=1, ls=":")
    speed.set_ylabel("aggregate speed, token/s")
    ratio.set_ylabel("aggregate speedup")
    for axes in (speed, ratio):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({of(*point)["batch_size"] for _, line in lines for point in line}))
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_ylim(0, 1.08 * axes.dataLim.y1)
        axes.set_xlabel("requests in a batch")
        axes.grid(alpha=0.25)
    figures.legend(drawn, speed)
    return drawn


def _curves(subject: Subject) -> list[curves.Curve]:
    """The lines of at least two batches."""
    points = [(run, name) for run in subject.runs for name in run.figures if of(run, name)["aggregate_tokens_per_s"]]
    return [(label, line) for label, line in curves.by_batch(points) if len({of(*point)["batch_size"] for point in line}) > 1]
