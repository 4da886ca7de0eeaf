"""What rounds spend their time on, from a trace of torch's profiler in Chrome's format. Pure functions; times in ms a round.

The host works through spans (named functions, nested); an instant belongs to the innermost one. The device works through
operations (kernels, copies, fills), each launched by a call of the host with the same correlation number. The device is idle
where no operation runs, and what the host does meanwhile is what it waits for.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

REST = "(between the named functions)"
DEVICE, CALLS = ("kernel", "gpu_memcpy", "gpu_memset"), ("cuda_runtime", "cuda_driver")
LAUNCHES = re.compile(r"Launch(Cooperative)?Kernel|GraphLaunch|MemcpyAsync|MemsetAsync")
# The first that fits an operation's name, in small letters, is its class.
CLASSES = (
    ("attention of FlashAttention", "flash|fmha"),
    ("attention of trees", "^_attention_kernel"),
    ("growing, walking and committing trees", "^(grow|find|order|(largest|best)_of_groups|ancestor_bits|greedy_of_[a-z]+|walk|emitted|keep_slots)_kernel"),
    ("cache writes", "reshape_and_cache|concat_and_cache"),
    ("matrix products", r"gemm|gemv|nvjet|cutlass|cublas|splitk|xmma|wgmma"),
    ("compiled by inductor", "^triton_"),
    ("norms, rotary embedding, activations", "rms_norm|rotary|silu|act_and_mul"),
    ("sorting and top-k", "sort|topk|radix|bitonic|scan|cumsum"),
    ("arg-max, soft-max and other reductions", "reduce|softmax|argmax"),
    ("gathering and scattering rows", "index|gather|scatter|embedding"),
    ("element by element, copies in the device", "elementwise|copy|fill|cat"),
)
COPIES = (("htod", "copies to the device"), ("dtoh", "copies to the host"), ("dtod", "element by element, copies in the device"))


class Interval(NamedTuple):
    begin: float
    end: float
    name: str


def summary(events: Iterable[Mapping[str, Any]], round_name: str) -> dict[str, Any]:
    """Everything below for the rounds in a trace's ``traceEvents``. Raises ``ValueError`` where there is no round."""
    events = [event for event in events if event.get("ph") == "X"]
    thread = next((_thread(e) for e in events if _annotation(e) and e["name"] == round_name), None)
    if thread is None:
        raise ValueError(f"the trace holds no span called {round_name!r}")
    spans = sorted((_interval(e) for e in events if _annotation(e) and _thread(e) == thread), key=lambda s: (s.begin, -s.end))
    rounds = [span for span in spans if span.name == round_name]
    calls = {e["args"]["correlation"]: _interval(e) for e in events if e.get("cat") in CALLS and "correlation" in e.get("args", {})}
    launched = [(calls.get(e.get("args", {}).get("correlation")), _interval(e), e["cat"]) for e in events if e.get("cat") in DEVICE]
    operations = [(op, kind, call.begin if call else op.begin) for call, op, kind in launched]
    host = Host(own_time(spans, rounds, round_name), len(rounds))
    within = [(op, kind, at) for op, kind, at in operations if host.holds(at)]
    busy = merged([op for op, _, _ in within])
    waits = [c for c in calls.values() if "Synchronize" in c.name and host.holds(c.begin)]
    per = 1000 * len(rounds)
    covered = sum(_overlap(busy, r) for r in rounds)
    return {
        "rounds": len(rounds),
        "round_ms": sum(r.end - r.begin for r in rounds) / per,
        "device_busy_ms": covered / per,
        "device_idle_ms": (sum(r.end - r.begin for r in rounds) - covered) / per,
        "operations": len(within) / len(rounds),
        "host_calls_that_launch": sum(bool(LAUNCHES.search(c.name)) and host.holds(c.begin) for c in calls.values()) / len(rounds),
        "synchronisations": len(waits) / len(rounds),
        "synchronisations_ms": sum(c.end - c.begin for c in waits) / per,
        "copies_to_the_host": sum("dtoh" in op.name.lower() for op, _, _ in within) / len(rounds),
        "device": _table([(device_class(op.name, kind), op) for op, kind, _ in within], len(rounds)),
        "kernels": _table([(op.name[:120], op) for op, _, _ in within], len(rounds))[:30],
        "host": host.table(within, busy, waits),
    }


def device_class(name: str, category: str = "kernel") -> str:
    """The kind of work that a device operation's name speaks of."""
    small = name.lower()
    if category == "gpu_memset":
        return "element by element, copies in the device"
    if category == "gpu_memcpy":
        return next((words for sign, words in COPIES if sign in small), "other copies")
    return next((words for words, pattern in CLASSES if re.search(pattern, small)), "other")


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, as intervals apart from one another, in order."""
    union: list[Interval] = []
    for begin, end, _ in sorted(intervals):
        if union and begin <= union[-1].end:
            union[-1] = union[-1]._replace(end=max(end, union[-1].end))
        else:
            union.append(Interval(begin, end, ""))
    return union


def own_time(spans: Sequence[Interval], rounds: Sequence[Interval], round_name: str) -> list[Interval]:
    """The rounds cut into pieces that belong to one span each, the innermost. ``spans`` sorted by begin, outer ones first."""
    pieces: list[Interval] = []
    for whole in rounds:
        open_spans, at = [Interval(whole.begin, whole.end, REST)], whole.begin
        inside = [s for s in spans if s.name != round_name and whole.begin <= s.begin and s.end <= whole.end]
        for span in [*inside, Interval(whole.end, whole.end, "")]:
            while open_spans and open_spans[-1].end <= span.begin:
                last = open_spans.pop()
                pieces.append(Interval(at, last.end, last.name))
                at = last.end
            if open_spans:
                pieces.append(Interval(at, span.begin, open_spans[-1].name))
                at = span.begin
                open_spans.append(span)
    return [piece for piece in pieces if piece.end > piece.begin]


class Host:
    """The host's pieces of all rounds, in order."""

    def __init__(self, pieces: Sequence[Interval], rounds: int) -> None:
        self._pieces, self._rounds = list(pieces), rounds
        self._begins = [piece.begin for piece in pieces]

    def holds(self, at: float) -> bool:
        return self.span(at) is not None

    def span(self, at: float) -> str | None:
        place = bisect_right(self._begins, at) - 1
        return self._pieces[place].name if place >= 0 and at < self._pieces[place].end else None

    def table(self, operations, busy: Sequence[Interval], waits: Sequence[Interval]) -> list[dict[str, Any]]:
        """A row a span, by its own time on the host: that, the device's idle time meanwhile, what it launched and waited for."""
        rows: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for piece in self._pieces:
            rows[piece.name]["host_ms"] += piece.end - piece.begin
            rows[piece.name]["device_idle_ms"] += piece.end - piece.begin - _overlap(busy, piece)
        for operation, _, at in operations:
            row = rows[self.span(at)]
            row["launched"] += 1
            row["launched_ms"] += operation.end - operation.begin
        for wait in waits:
            row = rows[self.span(wait.begin)]
            row["synchronisations"] += 1
            row["synchronisations_ms"] += wait.end - wait.begin
        names = ("host_ms", "device_idle_ms", "launched", "launched_ms", "synchronisations", "synchronisations_ms")
        scale = {name: self._rounds * (1000 if name.endswith("_ms") else 1) for name in names}
        found = [{"span": span, **{name: row[name] / scale[name] for name in names}} for span, row in rows.items()]
        return sorted(found, key=lambda row: -row["host_ms"])


def _table(named: Sequence[tuple[str, Interval]], rounds: int) -> list[dict[str, Any]]:
    rows: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for name, operation in named:
        rows[name][0] += operation.end - operation.begin
        rows[name][1] += 1
    found = [{"what": name, "ms": us / 1000 / rounds, "operations": count / rounds} for name, (us, count) in rows.items()]
    return sorted(found, key=lambda row: -row["ms"])


def _overlap(busy: Sequence[Interval], piece: Interval) -> float:
    """How much of ``piece`` the intervals of ``busy``, apart and in order, cover."""
    first = max(0, bisect_right(busy, (piece.begin, float("inf"), "")) - 1)
    total = 0.0
    for begin, end, _ in busy[first:]:
        if begin >= piece.end:
            break
        total += max(0.0, min(end, piece.end) - max(begin, piece.begin))
    return total


def _interval(event: Mapping[str, Any]) -> Interval:
    begin = float(event["ts"])
    return Interval(begin, begin + float(event["dur"]), str(event["name"]))


def _annotation(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "user_annotation"


def _thread(event: Mapping[str, Any]) -> tuple:
    return event.get("pid"), event.get("tid")
