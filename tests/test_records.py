"""What an engine or a file may say of an answer: numbers that fit together, every field there and of its own kind."""

import copy
import json
import math
from dataclasses import replace

import pytest
from fake_engine import fake_decoded
from hypothesis import given
from hypothesis import strategies as st

from harness.records import Chunk, Decoded, Drafting, Round
from harness.store import Cell, Failure, Key

CELL = Cell(Key("q/1", 0, "ddtree", 0), "chat", 3, 5, "sha", fake_decoded([4, 5, 6, 7, 8], a_round=2), "text", started_at=7.5)
FAILED = Cell(Key("q/1", 1, "ddtree", 0), "chat", 4, failure=Failure("E", "why"), throttled=True)
SERVED = replace(
    CELL, decoded=Decoded((), "stop", 0.1, 0.9, (), (Chunk(2, 0.1), Chunk(None, 0.9)), Drafting(3, 9, 4, (3, 1)), 6, "an answer")
)
WRONG = st.sampled_from([None, "junk", "", -1.5, True, [], {}, [None], {"a": 1}, math.nan, math.inf, 10**30, [["x"]]])


@pytest.mark.parametrize("cell", [CELL, FAILED, SERVED])
def test_a_cell_comes_back_from_its_json(cell):
    assert Cell.from_json(cell.to_json()) == cell
    assert Cell.from_json(json.loads(json.dumps(cell.to_json()))) == cell


def test_what_a_server_said_is_read_as_strictly():
    whole = json.loads(json.dumps(SERVED.to_json()))
    for place, wrong in ((("chunks", 0, "at_s"), "soon"), (("drafting", "accepted_to_depth", 1), 0.5), (("output_tokens",), "six"), (("text",), 7)):
        changed = copy.deepcopy(whole)
        holder = changed["decoded"]
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = wrong
        with pytest.raises(ValueError, match=str(place[-1] if isinstance(place[-1], str) else place[-2])):
            Cell.from_json(changed)
    for name in ("chunks", "drafting", "output_tokens", "text"):  # a version that knew no servers wrote none
        Cell.from_json({**whole, "decoded": {k: v for k, v in whole["decoded"].items() if k != name}})


@pytest.mark.parametrize("counts", [(3, 3, 1, 4, 1), (3, 3, 1, -1, 0), (3, 3, 1, 1, 3), (3, 3, 1, 1, -1)])
def test_a_round_that_cannot_be_is_refused(counts):
    with pytest.raises(ValueError, match="cannot accept"):
        Round(*counts, at_s=1.0)


def test_rounds_that_do_not_deliver_the_tokens_are_refused():
    one = Round(2, 2, 1, 1, 2, 0.5)
    assert Decoded((1, 2, 3), "length", 0.1, 0.5, (one,)).rounds == (one,)
    for tokens in ((1, 2), (1, 2, 3, 4), ()):
        with pytest.raises(ValueError, match="delivered 3"):
            Decoded(tokens, "length", 0.1, 0.5, (one,))


@pytest.mark.parametrize("ttft, at, end", [(-0.1, 0.5, 0.5), (0.6, 0.5, 0.5), (0.1, 0.5, 0.4), (math.nan, 0.5, 0.5),
                                           (0.1, math.nan, 0.5), (0.1, 0.5, math.inf), (0.1, 0.5, math.nan)])  # fmt: skip
def test_times_out_of_order_are_refused(ttft, at, end):
    with pytest.raises(ValueError, match="times out of order"):
        Decoded((1, 2), "length", ttft, end, (Round(0, 0, 0, 0, 1, at),))


def places(data):
    """Every (holder, key) of nested dictionaries and lists."""
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], (dict, list)):
            yield from places(data[key])


def plain(cell: Cell) -> dict:
    data = cell.to_json()
    data["decoded"] = {**data["decoded"], "tokens": list(data["decoded"]["tokens"]), "rounds": list(data["decoded"]["rounds"])}
    return data


@given(st.data(), WRONG)
def test_no_field_of_another_kind_passes(data, wrong):
    """What is read back is a cell that says something else of the right kind, or nothing is."""
    changed = plain(CELL)
    holder, key = data.draw(st.sampled_from([(h, k) for h, k in places(changed) if not (wrong == [] and isinstance(h[k], list))]))
    holder[key] = wrong
    try:
        cell = Cell.from_json(changed)
    except ValueError:
        return
    for (mine, at), (theirs, _) in zip(places(plain(cell)), places(plain(CELL)), strict=True):
        optional = at in ("throttled", "draft_s", "build_s", "verify_s", "commit_s", "batch", "batch_size")
        assert type(mine[at]) is type(theirs[at]) or optional and type(mine[at]) in (float, bool, type(None)) or at.endswith(("_s", "_at"))


@given(st.data())
def test_no_field_can_be_missing_but_those_that_may_be_unknown(data):
    changed = plain(CELL)
    holder, key = data.draw(st.sampled_from([(h, k) for h, k in places(changed) if isinstance(h, dict)]))
    del holder[key]
    if key in ("draft_s", "build_s", "verify_s", "commit_s", "throttled", "failure", "batch", "batch_size"):
        Cell.from_json(changed)
        return
    with pytest.raises((KeyError, ValueError)):
        Cell.from_json(changed)


def test_a_field_too_many_and_a_cell_of_both_or_neither_outcome_are_refused():
    for changed, words in (
        ({"colour": "red"}, "Cell has no colour"),
        ({"failure": {"kind": "E", "message": "m"}}, "both an output and a failure"),
        ({"decoded": None}, "neither"),
        ({"decoded": {**CELL.decoded.to_json(), "speed": 3}}, "Decoded has no speed"),
    ):
        with pytest.raises(ValueError, match=words):
            Cell.from_json({**CELL.to_json(), **changed})
