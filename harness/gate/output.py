"""A comparison as a text table, as JSON, and as GitHub annotations with a markdown summary. Pure: text in, text out."""

from __future__ import annotations

import json

from harness.gate.compare import Comparison
from harness.gate.verdict import CONFIDENCE, Figure, Verdict
from harness.stats import Estimate

COLUMNS = ("strategy", "figure", "candidate", "baseline", f"change [{100 * CONFIDENCE:g} %]", "verdict")
_COMMANDS = {Verdict.REGRESSED: "error", Verdict.INCONCLUSIVE: "warning", Verdict.PASS: "notice"}


def text(comparison: Comparison) -> str:
    """The table, a line for each detail and note, and the verdict last."""
    rows = [COLUMNS, *map(_row, comparison.figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    failing = [f for f in comparison.figures if f.verdict is not Verdict.PASS]
    details = [f"{f.strategy}, {f.name}: {f.detail}" for f in failing if f.detail]
    return "\n".join([*lines, "", *details, *comparison.notes, _last(comparison)])


def as_json(comparison: Comparison) -> str:
    return json.dumps(comparison.to_json(), indent=2, ensure_ascii=False, allow_nan=False)


def annotations(comparison: Comparison) -> str:
    """One workflow command for each figure that did not pass, and one for the whole."""
    lines = [
        _command(f.verdict, f"{f.strategy}: {f.name} {f.verdict}", _sentence(f))
        for f in comparison.figures
        if f.verdict not in (None, Verdict.PASS)
    ]
    return "\n".join([*lines, _command(comparison.verdict, "speculative decoding gate", _last(comparison))])


def markdown(comparison: Comparison) -> str:
    """For GITHUB_STEP_SUMMARY."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, comparison.figures)]
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    details = [f"- {f.strategy}, {f.name}: {f.detail}" for f in comparison.figures if f.detail]
    notes = [f"- {note}" for note in comparison.notes]
    heading = f"## Speculative decoding gate: {comparison.verdict}"
    return "\n".join([heading, "", *table, "", *details, *notes, "", _last(comparison), ""])


def _row(figure: Figure) -> tuple[str, ...]:
    change = _change(figure.change) if figure.change else ""
    verdict = str(figure.verdict) if figure.verdict else "not judged"
    numbers = (_number(figure, value) for value in (figure.candidate, figure.baseline))
    return figure.strategy, figure.name, *numbers, change, verdict


def _number(figure: Figure, value: float | None) -> str:
    if value is None:
        return "–"
    if figure.name.startswith(("identical", "failed")):
        return f"{100 * value:.4g} %"
    return f"{value:.4g}×" if figure.name.startswith("speedup") else f"{value:.4g}"


def _change(change: Estimate) -> str:
    """A ratio as a gain or loss in percent, with its interval."""
    value, *ends = (None if r is None else f"{100 * (r - 1):+.1f}".replace("-0.0", "+0.0") for r in change.to_json())
    return f"{value} %" if None in ends else f"{value} % [{ends[0]}, {ends[1]}]"


def _sentence(figure: Figure) -> str:
    _, _, candidate, baseline, change, _ = _row(figure)
    return f"{candidate}, baseline {baseline}" + (f", change {change}" if change else "") + f". {figure.detail}"


def _last(comparison: Comparison) -> str:
    open_ones = [f"{f.strategy} {f.name}" for f in comparison.figures if f.verdict is comparison.verdict]
    which = "" if comparison.verdict is Verdict.PASS else f" ({', '.join(open_ones)})"
    return f"gate: {comparison.verdict}{which}; tolerance {100 * comparison.tolerance:g} %"


def _command(verdict: Verdict, title: str, message: str) -> str:
    """``::error title=...::message``, escaped as the runner wants it."""
    message = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    title = title.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A").replace(":", "%3A").replace(",", "%2C")
    return f"::{_COMMANDS[verdict]} title={title}::{message}"
