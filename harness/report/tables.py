"""The report's tables of figures, as DataFrames of text ready to be read; "–" stands where there is no figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from harness.report.subject import Reported, Subject
from harness.table import CATEGORY_COLUMNS, COLUMNS, LOAD_COLUMNS, Column, Figures, by_category, interval

NONE = "–"


def number(value: float | None, digits: int = 2, scale: float = 1) -> str:
    return NONE if value is None else f"{value * scale:,.{digits}f}"


def share(value: float | None) -> str:
    """A percentage; one that is not whole never reads as 0 or 100."""
    if value is None:
        return NONE
    return f"{value:.0%}" if value in (0, 1) else f"{min(max(value, 0.001), 0.999):.1%}"


def runs(subject: Subject) -> pd.DataFrame:
    """Which letter stands for which run."""
    rows = [_run_row(run) for run in subject.runs]
    if subject.sweeps:
        rows = [{"run": row["run"], "job": run.job or NONE, **row} for run, row in zip(subject.runs, rows)]
    return pd.DataFrame(rows)


def _run_row(run: Reported) -> dict[str, Any]:
    sampling = run.config["sampling"]
    greedy = "greedy" if run.greedy else f"temperature {sampling['temperature']:g}"
    return {
        "run": run.letter,
        "what": run.title,
        "number format": run.environment["engine"].get("dtype", NONE),
        "sampling": f"{greedy}, up to {sampling['max_new_tokens']} tokens",
        "node budget": run.budgets or NONE,
        "folder": run.folder.name,
    }


def headline(subject: Subject) -> pd.DataFrame:
    """The terminal's table, a row for each strategy of each run."""
    rows = []
    for run in subject.runs:
        for name, figures in run.figures.items():
            rows.append({"strategy": subject.full_name(run, name), **texts(COLUMNS, figures)})
    return pd.DataFrame(rows)


def load(subject: Subject) -> pd.DataFrame:
    """The terminal's second table, a row for each strategy of each run under load; empty where there is none."""
    rows = []
    for run in subject.runs:
        for name, figures in run.figures.items() if run.load else ():
            rows.append({"strategy": subject.full_name(run, name), "conversations": run.load, **texts(LOAD_COLUMNS, figures)})
    return pd.DataFrame(rows)


def suites(subject: Subject) -> pd.DataFrame:
    """A row for each suite and strategy of each run that asked several suites; empty where there is none."""
    rows = []
    for run in subject.runs:
        for name, figures in by_category(run.figures).items() if run.config["suite"].get("of") else ():
            rows.append({"suite · strategy": subject.name(run, name), **texts(CATEGORY_COLUMNS, figures)})
    return pd.DataFrame(rows)


def load_meanings() -> str:
    """What each of the load's columns means, for under the table."""
    return ". ".join(f"{column.title[0].upper()}{column.title[1:]}: {column.meaning}" for column in LOAD_COLUMNS) + "."


def texts(columns: Sequence[Column], figures: Figures) -> dict[str, str]:
    """A strategy's row of a table with these columns, by their titles and units."""
    return {f"{column.title} {column.unit}".strip(): column.cell(figures) for column in columns}


def speedups(subject: Subject) -> pd.DataFrame:
    """Speedup over the baseline: mean over prompts with its interval, ratio of totals, slowest and fastest prompt."""
    rows = []
    for run in subject.runs:
        total = (run.figures.get(run.baseline) or {}).get("decode_tokens_per_s")
        for name, figures in run.figures.items():
            if name == run.baseline or figures["speedup"] is None:
                continue
            each = figures["speedup_by_prompt"]
            slowest, fastest = min(each, key=each.get), max(each, key=each.get)
            rows.append({
                "strategy": subject.name(run, name),
                "speedup [95 %]": interval(figures["speedup"]),
                "ratio of totals": f"{number(figures['decode_tokens_per_s'] / total)}×" if total else NONE,
                "slowest prompt": f"{each[slowest]:.2f}× ({slowest})",
                "fastest prompt": f"{each[fastest]:.2f}× ({fastest})",
                "prompts slower than the baseline": f"{sum(v < 1 for v in each.values())} of {len(each)}",
            })  # fmt: skip
    return pd.DataFrame(rows)


def acceptance(subject: Subject) -> pd.DataFrame:
    """Acceptance length both ways, pooled over rounds and as the mean over answers, and the mean round's tree."""
    rows = []
    for run in subject.runs:
        for name, figures in run.figures.items():
            mean_round = figures["mean_round"]
            rows.append({
                "strategy": subject.name(run, name),
                "delivered, pooled": number(figures["acceptance_length"]),
                "delivered, mean over answers": number(figures["acceptance_length_mean_over_requests"]),
                "verified, pooled": number(figures["acceptance_length_verified"]),
                "verified, mean over answers": number(figures["acceptance_length_verified_mean_over_requests"]),
                "rounds": f"{figures['rounds']:,}",
                "nodes a round": number(mean_round.get("proposed"), 1),
                "tree depth": number(mean_round.get("depth"), 1),
                "tree width": number(mean_round.get("width"), 1),
            })  # fmt: skip
    return pd.DataFrame(rows)


def latencies(subject: Subject) -> pd.DataFrame:
    """Percentiles of TTFT, TPOT and chunk latency in ms, with the number of samples behind them."""
    rows = []
    for run in subject.runs:
        for name, figures in run.figures.items():
            for title, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("chunk", "chunk_s")):
                points = {f"{p} [ms]": number(figures[key][p], 1, 1000) for p in ("p50", "p90", "p95", "p99")}
                row = {"strategy": subject.name(run, name), "latency": title, **points}
                rows.append({**row, "samples": f"{figures[key]['n']:,}"})
    return pd.DataFrame(rows)


PHASES = {
    "draft_s": "draft",
    "build_s": "build tree",
    "verify_s": "verify",
    "commit_s": "accept and commit",
    "host_s": "host gap",
}


def round_times(subject: Subject) -> pd.DataFrame:
    """A mean round by phase [ms], and how much of the machine's memory bandwidth the rounds need."""
    rows = []
    for run in subject.runs:
        for name, figures in run.figures.items():
            mean_round = figures["mean_round"]
            phases = {f"{title} [ms]": number(mean_round.get(key), 2, 1000) for key, title in PHASES.items()}
            whole = number(mean_round.get("chunk_s"), 2, 1000)
            row = {"strategy": subject.name(run, name), **phases, "round [ms]": whole}
            rows.append({**row, "bandwidth use": share(figures["bandwidth_use"])})
    return pd.DataFrame(rows)


def budgets(subject: Subject) -> pd.DataFrame:
    """Acceptance, round time and speed of every strategy that has a node budget; empty with fewer than two budgets."""
    rows = []
    for run in subject.runs:
        for name, figures in run.figures.items():
            if run.budget(name) is None or figures["acceptance_length"] is None:
                continue
            rows.append({
                "strategy": subject.name(run, name),
                "suite": run.config["suite"]["name"],
                "node budget": run.budget(name),
                "acceptance [tok/round]": number(figures["acceptance_length"]),
                "round [ms]": number(figures["mean_round"].get("chunk_s"), 1, 1000),
                "speed [tok/s]": number(figures["decode_tokens_per_s"], 1),
                "speedup [95 %]": interval(figures["speedup"]),
            })  # fmt: skip
    table = pd.DataFrame(rows)
    if len(table) == 0 or table["node budget"].nunique() < 2:
        return pd.DataFrame()
    return table.sort_values(["suite", "node budget"], kind="stable", ignore_index=True)
