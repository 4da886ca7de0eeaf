"""What a profile of captured rounds makes of a trace, worked out by hand."""

import pytest

from benchmarks.round_profile import share_out


def operation(name, ts, dur, cat="kernel", grid=(1, 1, 1)):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"grid": list(grid)}}


def test_what_overlaps_counts_once_and_gaps_are_idle():
    """Two rounds alike: a from 0 to 10, b beside it from 5 to 15 (adds 5), nothing to 20, a of another grid to 24."""
    events = [{"ph": "M", "name": "process_name"}, operation("host", 0, 500, cat="cuda_runtime")]
    for begin in (0, 24):
        events += [operation("a", begin, 10), operation("b", begin + 5, 10), operation("a", begin + 20, 4, grid=(8, 1, 1))]
    told = share_out(events, 2)
    assert told["busy_us"] == 19 and told["idle_us"] == 5 and told["operations"] == 3
    assert [(k["kernel"], k["grid"], k["us"], k["times"]) for k in told["kernels"]] == [
        ("a", "1x1x1", 10, 1), ("b", "1x1x1", 5, 1), ("a", "8x1x1", 4, 1),
    ]  # fmt: skip


def test_a_trace_without_a_device_is_refused():
    with pytest.raises(ValueError, match="no operation of a device"):
        share_out([operation("host", 0, 5, cat="cuda_runtime")], 1)
