"""Figures of whole batches: the example that docs/metrics.md works out by hand, what is left out, and where a speedup crosses 1."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_summary import CELLS

from harness import aggregate, metrics
from harness.aggregate import batch_s, crossings, tokens_behind_firsts
from harness.records import Decoded, Round
from harness.store import Cell, Failure, Key
from harness.summary import HEADLINE, headline, summarise
from harness.table import BATCH_COLUMNS

SECTION = (Path(__file__).resolve().parent.parent / "docs" / "metrics.md").read_text().partition("## A batch of requests")[2]
EXAMPLE = json.loads(re.search(r"```json\n(.*?)```", SECTION, re.DOTALL)[1])
OF_BATCHES = re.findall(r"^\| (\w+), batch (\d) \| [^|]+ \| aggregate speed \| ([\d.]+) \|$", SECTION, re.MULTILINE)
OF_STRATEGIES = re.findall(r"^\| (\w+) \| [^|]+ \| `(\w+)` \| ([\d.]+) \|$", SECTION, re.MULTILINE)


def decoded(tokens: int, ttft_s: float, end_s: float) -> Decoded:
    rounds = [Round(0, 0, 0, 0, 1, ttft_s + (end_s - ttft_s) * (i + 1) / (tokens - 1)) for i in range(tokens - 1)]
    rounds = [*rounds[:-1], replace(rounds[-1], at_s=end_s)] if rounds else []
    return Decoded(tuple(range(tokens)), "length", ttft_s, end_s, tuple(rounds))


def cells_of(strategy: str, batch: int, requests, size=None, **changes) -> list[Cell]:
    """The cells of one batch; ``changes``: turn, repetition, session."""
    turn, repetition = changes.pop("turn", 0), changes.pop("repetition", 0)
    return [
        Cell(Key(f"p{batch}.{i}", turn, strategy, repetition), "chat", i, decoded=decoded(*request), batch=batch,
             batch_size=size or len(requests), **changes)
        for i, request in enumerate(requests)
    ]  # fmt: skip


def both(cells) -> dict:
    return summarise(cells, ["baseline", "ddtree"], "baseline", 0)


WHOLE = [cell for b in EXAMPLE for cell in cells_of(b["strategy"], b["batch"], [tuple(r.values()) for r in b["requests"]])]


def test_the_worked_example_of_the_documentation():
    assert len(OF_BATCHES) == 4 and len(OF_STRATEGIES) == 3
    for strategy, batch, value in OF_BATCHES:
        requests = [c.decoded for c in WHOLE if c.key.strategy == strategy and c.batch == int(batch)]
        assert tokens_behind_firsts(requests) / batch_s(requests) == pytest.approx(float(value))
    found = both(WHOLE)
    for strategy, figure, value in OF_STRATEGIES:
        said = found[strategy][figure]
        assert (said[0] if isinstance(said, list) else said) == pytest.approx(float(value))
    assert [(f["batch_size"], f["batches"], f["batches_left_out"]) for f in found.values()] == [(2, 2, 0)] * 2
    assert found["baseline"]["aggregate_speedup"] == [1, 1, 1] and headline(found)["ddtree"].keys() == set(HEADLINE)
    assert "4 · 2 ^ (1/2) = 5.66" in SECTION and crossings({4: 1.25, 8: 0.8}) == [pytest.approx(4 * 2**0.5)]


def test_figures_of_each_request_stay_as_they_are():
    alone = both([replace(cell, batch=None, batch_size=None) for cell in WHOLE])
    for name, figures in both(WHOLE).items():
        assert {k: v for k, v in figures.items() if k not in aggregate.NAMES} == {k: v for k, v in alone[name].items() if k not in aggregate.NAMES}
        assert all(alone[name][figure] is None for figure in aggregate.NAMES)


def test_an_empty_place_is_paid_for():
    """The batch lasts until its slowest request ends."""
    request = (7, 0.5, 2.0)
    for other in ((7, 0.5, 2.0), (2, 0.5, 0.6)):
        requests = [decoded(*request), decoded(*other)]
        assert batch_s(requests) == 1.5 and tokens_behind_firsts(requests) == 6 + other[0] - 1
    assert batch_s([decoded(3, 0.2, 0.9), decoded(3, 0.6, 1.0)]) == pytest.approx(0.8), "from the first first token to the last token"


def without(cells, left_out) -> list[Cell]:
    return [cell for cell in cells if not left_out(cell)]


def failed(cell: Cell) -> Cell:
    return replace(cell, decoded=None, failure=Failure("E", "why"))


def test_only_full_and_whole_batches_are_in_the_figures():
    right = both(WHOLE)["ddtree"]
    small = [cell for name in ("baseline", "ddtree") for cell in cells_of(name, 2, [(5, 0.1, 9.0)])]
    fails = [failed(cell) for cell in cells_of("ddtree", 3, [(5, 0.1, 9.0)] * 2)] + cells_of("baseline", 3, [(5, 0.1, 9.0)] * 2)
    cut = [replace(cell, session=i) for i, cell in enumerate(cells_of("ddtree", 4, [(5, 0.1, 9.0)] * 2))]
    found = both([*WHOLE, *small, *fails, *cut])
    assert {k: v for k, v in found["ddtree"].items() if k in aggregate.NAMES} == {**{k: right[k] for k in aggregate.NAMES}, "batches_left_out": 3}
    assert found["baseline"]["batches"] == 3 and found["baseline"]["batches_left_out"] == 1


def test_a_batch_is_compared_with_the_same_prompts_alone():
    """A third prompt that one strategy could not ask took its place in neither."""
    other = [replace(cell, key=cell.key._replace(prompt=f"other{i}")) for i, cell in enumerate(cells_of("ddtree", 5, [(5, 0.1, 0.2)] * 2))]
    found = both([*WHOLE, *other, *cells_of("baseline", 5, [(5, 0.1, 9.0)] * 2)])
    assert found["ddtree"]["aggregate_speedup"] == both(WHOLE)["ddtree"]["aggregate_speedup"] and found["ddtree"]["batches"] == 3


def test_turns_and_repetitions_of_a_batch_are_one_sample():
    """Three copies of every batch say no more than one: the interval stays as wide."""
    copies = [replace(cell, key=cell.key._replace(turn=t, repetition=r)) for cell in WHOLE for t, r in ((0, 0), (0, 1), (1, 0))]
    once, thrice = (both(cells)["ddtree"]["aggregate_speedup"] for cells in (WHOLE, copies))
    assert once == pytest.approx(thrice) and once[1] < once[0] < once[2]
    single = both(without(WHOLE, lambda cell: cell.batch == 1))["ddtree"]
    assert single["aggregate_speedup"] == [pytest.approx(2), None, None]


@given(st.lists(st.tuples(st.integers(2, 30), st.floats(0.01, 2), st.floats(0.01, 5)), min_size=1, max_size=8))
def test_a_batch_of_one_is_the_request_itself_and_more_requests_are_never_slower_than_one(drawn):
    requests = [decoded(tokens, ttft, ttft + spent) for tokens, ttft, spent in drawn]
    for request in requests:
        assert tokens_behind_firsts([request]) / batch_s([request]) == pytest.approx(metrics.decode_tokens_per_s(request))
        assert batch_s(requests) >= batch_s([request])
    assert tokens_behind_firsts(requests) == sum(tokens_behind_firsts([request]) for request in requests)


def test_requests_that_went_one_by_one_are_batches_of_one():
    found = both(CELLS)["ddtree"]
    assert set(map(found.get, aggregate.NAMES)) == {None} and [column.cell(found) for column in BATCH_COLUMNS[:3]] == ["–"] * 3
    as_batches = [replace(cell, batch="abc".index(cell.key.prompt), batch_size=1 if cell.decoded else None) for cell in CELLS]
    of_one, exact = aggregate.of_one(found), both(as_batches)["ddtree"]
    assert of_one["aggregate_speedup"] == pytest.approx(exact["aggregate_speedup"]) and of_one["batches"] == exact["batches"] == 2
    assert of_one["aggregate_tokens_per_s"] == pytest.approx(exact["aggregate_tokens_per_s"])


@pytest.mark.parametrize(
    "speedups, wanted",
    [
        ({1: 2.0, 16: 1.2}, []),
        ({1: 0.9, 2: 0.8, 4: 0.5}, []),
        ({1: 2.0, 4: 0.5}, [2]),
        ({8: 0.5, 2: 2.0, 1: 3.0}, [4]),
        ({1: 1.5, 2: 1.0, 4: 0.5}, [2]),
        ({1: 1.0, 2: 0.5}, []),
        ({1: 2.0, 2: 0.5, 4: 2.0}, [math.sqrt(2), math.sqrt(8)]),
        ({3: 2.0}, []),
        ({}, []),
    ],
)
def test_where_a_speedup_crosses_1(speedups, wanted):
    assert crossings(speedups) == pytest.approx(wanted)
