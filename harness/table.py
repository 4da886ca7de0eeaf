"""The table of a run, for the terminal and as Markdown, from one list of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """``title`` and ``unit`` over the figures, ``meaning`` in one line below, ``cell`` the text of one strategy."""

    title: str
    unit: str
    meaning: str
    cell: Callable[[Figures], str]


def _number(value: float | None, digits: int, scale: float = 1) -> str:
    return "–" if value is None else f"{value * scale:.{digits}f}"


def _estimate(figure: str) -> Callable[[Figures], str]:
    return lambda figures: interval(figures[figure])


def interval(estimate: Sequence[float | None] | None) -> str:
    """``2.10× [1.90, 2.30]``, without the bracket where the data carry no interval."""
    if estimate is None:
        return "–"
    value, low, high = estimate
    return f"{value:.2f}×" if low is None or low == high else f"{value:.2f}× [{low:.2f}, {high:.2f}]"


def _bounded(figure: str, digits: int, scale: float = 1) -> Callable[[Figures], str]:
    def text(figures: Figures) -> str:
        value, low, high = figures[figure] or (None, None, None)
        bounds = "" if low is None else f" [{_number(low, digits, scale)}, {_number(high, digits, scale)}]"
        return f"{_number(value, digits, scale)}{bounds}"

    return text


def _percentiles(figure: str, digits: int, scale: float) -> Callable[[Figures], str]:
    return lambda figures: "/".join(_number(figures[figure][point], digits, scale) for point in ("p50", "p90", "p99"))


def _throughput(figures: Figures) -> str:
    return _number(figures["throughput_tokens_per_s"], 1)


def _requests(figures: Figures) -> str:
    return _number(figures["requests_per_s"], 2)


def _in_flight(figures: Figures) -> str:
    return f"{_number(figures['in_flight_mean'], 1)}, {_number(figures['in_flight_max'], 0)}"


def _aggregate(figures: Figures) -> str:
    return _number(figures["aggregate_tokens_per_s"], 1)


def _batches(figures: Figures) -> str:
    left_out = f" ({figures['batches_left_out']} left out)" if figures["batches_left_out"] else ""
    return "–" if figures["batches"] is None else f"{figures['batches']} of {figures['batch_size']}{left_out}"


def _chunk_tokens(figures: Figures) -> str:
    return _number(figures["chunk_tokens"], 2)


def _speed(figures: Figures) -> str:
    return _number(figures["decode_tokens_per_s"], 1)


def _acceptance(figures: Figures) -> str:
    return _number(figures["acceptance_length"], 2)


def _ttft(figures: Figures) -> str:
    return _number(figures["ttft_p50_s"], 0, 1000)


def _identical(figures: Figures) -> str:
    # 99.97 must not read as 100: one differing answer is what this column is there to show.
    share = figures["identical"]
    return _number(share, 0, 100) if share in (None, 0, 1) else f"{min(max(share, 0.001), 0.999):.1%}"[:-1]


def _memory(figures: Figures) -> str:
    return _number(figures["peak_memory_bytes"], 0, 2**-20)


def _cells(figures: Figures) -> str:
    failed = f" ({figures['failed']} failed)" if figures["failed"] else ""
    return f"{figures['cells']}{failed}"


COLUMNS = (
    Column("speed", "tok/s", "output tokens after the first / time from first to last", _speed),
    Column("speedup", "[95 %]", "geometric mean over prompts of speed / baseline's; interval over prompts (of fewer than 6: Student's t, very wide)", _estimate("speedup")),
    Column("acceptance", "tok/round", "tokens that a round (one target pass) delivers, bonus token included", _acceptance),
    Column("TTFT", "ms", "median time to the first token", _ttft),
    Column("TPOT", "ms p50/p90/p99", "time per output token after the first; percentiles over answers", _percentiles("tpot_s", 1, 1000)),
    Column("identical", "%", "share of answers equal to the baseline's to the same prompt, token for token", _identical),
    Column("memory", "MiB", "peak of the process, plus the device's if one is used", _memory),
    Column("cells", "", "answers measured: prompts × turns × repetitions", _cells),
)

LOAD_COLUMNS = (
    Column("throughput", "tok/s", "output tokens of all answers / time from the first request to the last token", _throughput),
    Column("requests", "1/s", "answers / the same time", _requests),
    Column("in flight", "mean, most", "requests under way at once: sum of end-to-end latencies / the same time; most", _in_flight),
    Column("TTFT", "ms p50/p90/p99", "time to the first token; percentiles over answers", _percentiles("ttft_s", 0, 1000)),
    Column("TPOT", "ms p50/p90/p99", "time per output token after the first", _percentiles("tpot_s", 1, 1000)),
    Column("chunk", "ms p50/p90/p99", "time between two deliveries of one answer's tokens", _percentiles("chunk_s", 1, 1000)),
    Column("chunk size", "tok", "tokens of a delivery after the first, mean", _chunk_tokens),
    Column("end to end", "s p50/p90/p99", "time from the request to its last token", _percentiles("end_to_end_s", 2, 1)),
)

BATCH_COLUMNS = (
    Column("aggregate", "tok/s", "output tokens of a batch after the first of each request / time from its first token to its last", _aggregate),
    Column("aggregate speedup", "[95 %]", "geometric mean over batches of aggregate / baseline's; interval over batches", _estimate("aggregate_speedup")),
    Column("batches", "", "full batches and their size; smaller, failed and interrupted ones are left out", _batches),
    Column("TTFT in batch", "ms p50/p90/p99", "time to the first token, the prefill of the whole batch inside", _percentiles("ttft_s", 0, 1000)),
)


CATEGORY_COLUMNS = (
    Column("speed", "tok/s [95 %]", "output tokens after the first / time from first to last", _bounded("decode_tokens_per_s", 1)),
    Column("speedup", "[95 %]", "geometric mean over prompts of speed / baseline's; interval over prompts", _estimate("speedup")),
    Column("acceptance", "tok/round [95 %]", "tokens that a round (one target pass) delivers, bonus token included", _bounded("acceptance_length", 2)),
    Column("mean TPOT", "ms [95 %]", "time per output token after the first, mean over prompts", _bounded("tpot_s", 2, 1000)),
    Column("identical", "%", "share of answers equal to the baseline's to the same prompt, token for token", _identical),
    Column("cells", "", "answers measured: prompts × turns × repetitions", _cells),
    Column("mean TTFT", "ms [95 %]", "time to the first token, mean over prompts", _bounded("ttft_s", 1, 1000)),
    Column("round", "ms [95 %]", "time from first token to last / rounds", _bounded("round_s", 2, 1000)),
)


@dataclass(frozen=True)
class Further:
    """Another table behind the first: of the same rows, or of ``rows`` with ``first`` over their names."""

    title: str
    columns: Sequence[Column]
    rows: Mapping[str, Figures] | None = None
    first: str = "strategy"


def by_category(summary: Mapping[str, Figures]) -> dict[str, Figures]:
    """A row for every category and strategy, the strategies of a category under one another."""
    categories = dict.fromkeys(category for figures in summary.values() for category in figures["by_category"])
    pairs = ((category, name) for category in categories for name in summary if category in summary[name]["by_category"])
    return {f"{category} · {name}": summary[name]["by_category"][category] for category, name in pairs}


WIDE = 96
NARROW_COLUMNS = 6


def terminal_table(
    summary: Mapping[str, Figures], title: str, width: int, first: str = "strategy", columns: Sequence[Column] = COLUMNS
) -> Table:
    """For a terminal of ``width`` characters; one too narrow for every column gets the first ones, nothing is cut."""
    shown = columns if width >= WIDE else columns[:NARROW_COLUMNS]
    while (table := _table(summary, title, first, shown)) and len(shown) > 1 and _width(table) > width:
        shown = shown[:-1]
    return table


def _table(summary: Mapping[str, Figures], title: str, first: str, shown: Sequence[Column]) -> Table:
    table = Table(title=escape(title), title_justify="left", box=None, padding=(0, 1), pad_edge=False, collapse_padding=True)
    table.add_column(first, no_wrap=True)
    for column in shown:
        table.add_column(f"{column.title}\n{column.unit}", justify="right", no_wrap=True)
    for name, figures in summary.items():
        table.add_row(escape(name), *(column.cell(figures) for column in shown))
    return table


def _width(table: Table) -> int:
    console = Console(width=10_000)
    return Measurement.get(console, console.options, table).maximum


def meanings(columns: Sequence[Column] = COLUMNS) -> list[str]:
    """One line per title."""
    found = {column.title: column.meaning for column in reversed(columns)}
    width = max(map(len, found))
    return [f"{title:<{width}}  {meaning}" for title, meaning in reversed(found.items())]


def markdown(
    summary: Mapping[str, Figures], title: str, notes: Sequence[str], first: str = "strategy", further: Sequence[Further] = ()
) -> str:
    """The table with its title, a list of what each column means, and ``notes``; ``further`` tables behind the first."""
    lines = [f"# {title}", "", *_markdown_table(summary, COLUMNS, first)]
    for other in further:
        rows, above = (summary, first) if other.rows is None else (other.rows, other.first)
        lines += ["", f"{other.title}.", "", *_markdown_table(rows, other.columns, above)]
    return "\n".join(lines + ([""] + [f"- {note}" for note in notes] if notes else [])) + "\n"


def _markdown_table(summary: Mapping[str, Figures], columns: Sequence[Column], first: str) -> list[str]:
    headers = [f"{column.title} {column.unit}".strip() for column in columns]
    lines = [f"| {first} | {' | '.join(headers)} |", "| --- |" + " ---: |" * len(columns)]
    lines += [f"| {name} | {' | '.join(c.cell(figures) for c in columns)} |" for name, figures in summary.items()]
    return [*lines, "", *(f"- **{column.title}**: {column.meaning}" for column in columns)]
