"""What a few rounds in a profiler's trace did: GPU time by kernel, GPU idle time by what the host did meanwhile. Pure functions.

A trace is the list ``traceEvents`` of PyTorch's Chrome trace; times in it are microseconds. A round and every phase inside it are
``record_function`` marks: ``round``, and ``phase: NAME``. All figures are per round.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ROUND, PHASE = "round", "phase: "
OUTSIDE = "between the phases"
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cuStreamSynchronize", "cuEventSynchronize")
_LAUNCHES = ("LaunchKernel", "GraphLaunch")
# The first that fits; what a kernel is for is read off its name.
_CLASSES = (
    ("copies", r"^Mem(cpy|set)"),
    ("tree: this project's kernels", r"ancestor|walk_kernel|grow_kernel|groups_kernel|find_kernel|order_kernel|greedy_of|keep_rows|tree_attention"),
    ("cache writes", r"reshape_and_cache"),
    ("attention", r"flash|fmha|attention|attn"),
    ("matrix products", r"gemm|gemv|cutlass|cublas|nvjet|xmma|splitk|one_row|some_rows|\bmm\b|bmm|dot_kernel"),
    ("top-k, arg-max, sorting", r"topk|argmax|arg_max|sort|radix|bitonic|reduce_kernel|softmax|cumsum|scan|multinomial"),
    ("norms, rotary, activations", r"rms|norm|rotary|silu|act_and_mul|triton_(poi|red|per)"),
    ("gathering and scattering", r"index|gather|scatter|embedding|cat(array|_)|copy|fill|arange|where"),
    ("element by element", r"elementwise"),
)
_GAPS_US = (5, 20, 100)

Interval = tuple[float, float]


def kernel_class(name: str) -> str:
    return next((kind for kind, pattern in _CLASSES if re.search(pattern, name, re.IGNORECASE)), "others")


def summarise(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Per round. Raises ``ValueError`` for a trace without a round.

    ``wall_us``; ``gpu``: ``busy_us`` (at least one kernel or copy runs) and ``idle_us``; ``classes`` and ``kernels`` (``us``, ``times``,
    longest first; kernels that run at once count each); ``gaps`` between GPU work, ``idle_by_phase`` (GPU idle, by the innermost phase
    that the host was in); ``host_by_phase`` (the phase less those inside it); ``waits`` of the host for the GPU, ``launches``, ``copies``.
    """
    whole = [event for event in events if event.get("ph") == "X" and "dur" in event]
    rounds = sorted(_span(e) for e in whole if e["name"] == ROUND and e.get("cat") == "user_annotation")
    if not rounds:
        raise ValueError("the trace holds no round")
    begin, end, n = rounds[0][0], rounds[-1][1], len(rounds)
    inside = [event for event in whole if begin <= event["ts"] < end]
    work = [event for event in inside if event.get("cat") in _ON_GPU]
    busy = union(_span(event) for event in work)
    # Time that the harness spends between two rounds is no round's.
    idle = [piece for gap in _holes(busy, begin, end) for piece in _common(gap, rounds)] if work else []
    phases = innermost([(e["name"].removeprefix(PHASE), *_span(e)) for e in inside if e["name"].startswith(PHASE) and e.get("cat") == "user_annotation"])
    runtime = [event for event in inside if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    waits = [event for event in runtime if event["name"] in _WAITS]
    wall = _length(rounds)
    return {
        "rounds": n,
        "wall_us": wall / n,
        "gpu": {"busy_us": _length(busy) / n, "idle_us": _length(idle) / n},
        "classes": _shares(((kernel_class(e["name"]), e["dur"]) for e in work), n),
        "kernels": _shares(((e["name"], e["dur"]) for e in work), n),
        "gaps": _gaps(idle, n),
        "idle_by_phase": _by_phase(idle, phases, n),
        "host_by_phase": _by_phase(rounds, phases, n),
        "waits": _shares(((e["name"], e["dur"]) for e in waits), n),
        "launches": sum(any(word in e["name"] for word in _LAUNCHES) for e in runtime) / n,
        "copies": _shares(((e["name"], e["dur"]) for e in work if e["cat"] == "gpu_memcpy"), n),
    }


def union(spans: Iterable[Interval]) -> list[Interval]:
    """The time in which at least one of ``spans`` runs, as intervals that do not touch."""
    found: list[list[float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return [(begin, end) for begin, end in found]


def innermost(marks: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Nested ``(name, begin, end)`` cut into pieces, each named by the innermost mark there, in order of time."""
    pieces, open_marks, at = [], [], 0.0

    def close(until: float) -> None:
        nonlocal at
        while open_marks and open_marks[-1][1] <= until:
            name, end = open_marks.pop()
            if end > at:
                pieces.append((name, at, end))
                at = end

    for name, begin, end in sorted(marks, key=lambda mark: (mark[1], -mark[2])):
        close(begin)
        if open_marks and begin > at:
            pieces.append((open_marks[-1][0], at, begin))
        at = begin
        open_marks.append((name, end))
    close(float("inf"))
    return pieces


def _span(event: Mapping[str, Any]) -> Interval:
    return event["ts"], event["ts"] + event["dur"]


def _length(spans: Iterable[Interval]) -> float:
    return float(sum(end - begin for begin, end in spans))


def _holes(busy: Sequence[Interval], begin: float, end: float) -> list[Interval]:
    edges = [begin, *(edge for span in busy for edge in span), end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2]) if b > a]


def _common(span: Interval, others: Sequence[Interval]) -> list[Interval]:
    cut = ((max(span[0], begin), min(span[1], end)) for begin, end in others)
    return [(begin, end) for begin, end in cut if end > begin]


def _by_phase(spans: Sequence[Interval], phases: Sequence[tuple[str, float, float]], n: int) -> dict[str, float]:
    """How much of ``spans`` lies in each phase [us per round], the most first."""
    found: dict[str, float] = defaultdict(float)
    for name, begin, end in phases:
        if shared := _common((begin, end), spans):
            found[name] += _length(shared) / n
    left = _length(spans) / n - sum(found.values())
    if left > 1e-6:
        found[OUTSIDE] = left
    return {name: found[name] for name in sorted(found, key=found.get, reverse=True)}


def _shares(pairs: Iterable[tuple[str, float]], n: int) -> dict[str, dict[str, float]]:
    us, times = defaultdict(float), defaultdict(int)
    for name, duration in pairs:
        us[name] += duration
        times[name] += 1
    return {name: {"us": us[name] / n, "times": times[name] / n} for name in sorted(us, key=us.get, reverse=True)}


def _gaps(idle: Sequence[Interval], n: int) -> list[dict[str, Any]]:
    """GPU pauses by length."""
    bounds, found = [0.0, *map(float, _GAPS_US), float("inf")], []
    for low, high in zip(bounds, bounds[1:]):
        mine = [b - a for a, b in idle if low <= b - a < high]
        found.append({"from_us": low, "to_us": None if high == float("inf") else high, "times": len(mine) / n, "us": sum(mine) / n})
    return found
