"""Each figure against the example that docs/metrics.md works out by hand, and against what must hold for any request."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import metrics
from harness.records import Chunk, Decoded, Drafting, Round

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "metrics.md").read_text().partition("## A batch of requests")[0]
REQUEST = Decoded.from_json(json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1]))
ROWS = re.findall(r"^\| `([\w.]+)` \|.*\| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE)
OF_ONE = {"ttft_s", "decode_s", "tpot_s", "decode_tokens_per_s", "end_to_end_tokens_per_s", "chunks_s",
          "output_tokens", "rounds", "accepted", "end_to_end_s", "chunk_tokens", "acceptance_committed", "acceptance_verified"}  # fmt: skip
ONE_TOKEN = Decoded((0,), "stop", 0.5, 0.5)


def figure(name: str):
    function, _, key = name.partition(".")
    if function == "repeated_4grams":
        return metrics.repeated_4grams(REQUEST.tokens)
    if function == "bandwidth_use":
        return metrics.bandwidth_use([(20, REQUEST)], 1000, 10, 4000)
    found = getattr(metrics, function)(REQUEST if function in OF_ONE else [REQUEST])
    return found[key] if key else found


@pytest.mark.parametrize("name, value", ROWS)
def test_the_worked_example_of_the_documentation(name, value):
    assert figure(name) == pytest.approx(json.loads(value), rel=1e-8)


def test_the_documentation_has_every_figure():
    documented = {name.partition(".")[0] for name, _ in ROWS}
    ours = {name for name, found in vars(metrics).items() if getattr(found, "__module__", "") == metrics.__name__}
    functions = {name for name in ours if not name.startswith("_")}
    assert functions - documented == {"percentiles", "mean", "identical_share", "loops"} and len(ROWS) == 34


@st.composite
def requests(draw) -> Decoded:
    """Any request that an engine can give: trees, trims at the limit, delivery in time order."""
    seconds = st.floats(1e-4, 1, allow_nan=False)
    now = ttft = draw(seconds)
    rounds = []
    for _ in range(draw(st.integers(0, 12))):
        depth = draw(st.integers(0, 8))
        width = draw(st.integers(1, 4)) if depth else 0
        proposed = draw(st.integers(depth, depth * width))
        accepted = draw(st.integers(0, depth))
        phases = [draw(seconds) for _ in range(4)]
        now += sum(phases) + draw(seconds)
        rounds.append(Round(proposed, depth, width, accepted, accepted + 1, now, *phases))
    if rounds:
        last = rounds.pop()
        emitted = draw(st.integers(1, last.emitted))
        rounds.append(Round(**{**vars(last), "emitted": emitted}))
    count = 1 + sum(r.emitted for r in rounds)
    tokens = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    return Decoded(tuple(tokens), "length", ttft, now, tuple(rounds))


@given(requests())
def test_figures_of_any_request_agree_with_each_other(request):
    if not request.rounds:
        assert metrics.tpot_s(request) is metrics.acceptance_committed(request) is None
        return
    assert sum(metrics.chunks_s(request)) == pytest.approx(metrics.decode_s(request))
    assert metrics.tpot_s(request) * metrics.decode_tokens_per_s(request) == pytest.approx(1)
    assert 1 <= metrics.acceptance_committed(request) <= metrics.acceptance_verified(request) + 1e-9
    assert 0 <= metrics.repeated_4grams(request.tokens) < 1
    mean = metrics.mean_round([request])
    assert mean["host_s"] > 0
    assert mean["chunk_s"] == pytest.approx(mean["host_s"] + sum(mean[name] for name in metrics.PHASES))


@given(st.lists(requests(), min_size=1, max_size=5))
def test_pooled_figures_agree_with_each_other(several):
    rounds = sum(len(d.rounds) for d in several)
    assert sum(metrics.accepted_histogram(several)) == rounds
    if not rounds:
        assert metrics.pooled_acceptance_verified(several) is None
        return
    to_depth = metrics.acceptance_to_depth(several)
    assert sum(to_depth) + 1 == pytest.approx(metrics.pooled_acceptance_verified(several))
    assert to_depth == sorted(to_depth, reverse=True)
    assert all(0 <= share <= 1 for share in metrics.acceptance_by_depth(several))
    each = [metrics.acceptance_committed(d) for d in several if d.rounds]
    assert min(each) - 1e-9 <= metrics.pooled_acceptance_committed(several) <= max(each) + 1e-9
    assert metrics.mean_round(several * 2) == pytest.approx(metrics.mean_round(several))


def test_an_end_token_from_prefill_has_no_speed_and_no_acceptance():
    assert metrics.tpot_s(ONE_TOKEN) is metrics.decode_tokens_per_s(ONE_TOKEN) is None
    assert metrics.acceptance_committed(ONE_TOKEN) is metrics.acceptance_verified(ONE_TOKEN) is None
    assert metrics.pooled_decode_tokens_per_s([ONE_TOKEN]) is metrics.pooled_acceptance_committed([ONE_TOKEN]) is None
    assert metrics.end_to_end_tokens_per_s(ONE_TOKEN) == 2.0
    assert metrics.mean_round([ONE_TOKEN]) == {}


def test_pooling_weighs_tokens_and_leaves_out_what_has_no_rounds():
    slow = Decoded((1, 2), "length", 1.0, 2.5, (Round(0, 0, 0, 0, 1, 2.5),))
    assert metrics.pooled_decode_tokens_per_s([REQUEST, slow, ONE_TOKEN]) == pytest.approx(7 / 3.0)
    assert metrics.pooled_acceptance_committed([REQUEST, slow, ONE_TOKEN]) == pytest.approx(7 / 4)
    assert metrics.pooled_acceptance_verified([REQUEST, slow]) == pytest.approx(1 + 5 / 4)
    assert metrics.pooled_end_to_end_tokens_per_s([REQUEST, slow]) == pytest.approx(9 / 4.5)
    assert metrics.mean([2.0, None, 4.0]) == 3.0 and metrics.mean([None]) is None


def test_rounds_that_were_only_counted_give_what_sums_can_give():
    shown = Decoded(tuple(range(9)), "length", 0.5, 2.5, tuple(Round(4, 4, 2, a, e, 0.5 + t) for a, e, t in [(3, 4, 1), (0, 1, 1.5), (3, 3, 2)]))
    counted = Decoded(shown.tokens, "length", 0.5, 2.5, chunks=(Chunk(1, 0.5), Chunk(8, 2.5)), drafting=Drafting(3, 12, 6, (2, 2, 2)))
    for name in ("acceptance_committed", "acceptance_verified", "rounds", "accepted", "output_tokens", "tpot_s"):
        assert getattr(metrics, name)(counted) == getattr(metrics, name)(shown), name
    for name in ("accepted_histogram", "acceptance_to_depth", "pooled_acceptance_committed", "pooled_acceptance_verified"):
        assert getattr(metrics, name)([counted]) == getattr(metrics, name)([shown]), name
    assert metrics.accepted_histogram([counted, shown]) == [2, 0, 0, 4]
    mean = metrics.mean_round([counted])
    assert (mean["proposed"], mean["chunk_s"]) == (4, 2 / 3) and mean["depth"] is mean["draft_s"] is mean["host_s"] is None
    assert metrics.accepted_histogram([Decoded((1, 2), "length", 0.1, 0.2, drafting=Drafting(1, 4, 1))]) == [], "no depths"
    assert Decoded.from_json(json.loads(json.dumps(counted.to_json()))) == counted


def test_nothing_has_no_histogram_and_no_depths():
    assert metrics.accepted_histogram([]) == metrics.acceptance_by_depth([]) == metrics.acceptance_to_depth([]) == []


def test_phases_that_were_not_timed_are_missing_and_not_zero():
    untimed = Decoded((1, 2), "length", 1.0, 2.5, (Round(0, 0, 0, 0, 1, 2.5),))
    mean = metrics.mean_round([REQUEST, untimed])
    assert mean["draft_s"] is mean["host_s"] is None and mean["chunk_s"] > 0


def test_acceptance_with_and_without_loops():
    looping = Decoded((7,) * 11, "length", 0.1, 1.1, tuple(Round(4, 4, 1, 4, 5, 0.6 + i / 2) for i in range(2)))
    assert metrics.loops(looping.tokens) and not metrics.loops(REQUEST.tokens)
    found = metrics.acceptance_by_looping([looping, REQUEST])
    assert found == {"share": 0.5, "acceptance_length_looping": 5, "acceptance_length_others": 2}
    assert metrics.acceptance_by_looping([])["share"] is None


def test_bandwidth_use_needs_rounds():
    assert metrics.bandwidth_use([(5, ONE_TOKEN)], 1000, 10, 4000) is None


def test_repeated_4grams():
    assert metrics.repeated_4grams([1, 2, 3]) == 0
    assert metrics.repeated_4grams([1, 2, 3, 4, 5]) == 0
    assert metrics.repeated_4grams([7] * 8) == pytest.approx(4 / 5)


def test_percentiles_say_how_many_samples():
    assert metrics.percentiles([1.0, None, 3.0], (50,)) == {"p50": 2.0, "n": 2}
    assert metrics.percentiles([None], (50, 90)) == {"p50": None, "p90": None, "n": 0}


def test_identical_share():
    assert metrics.identical_share([([1, 2], (1, 2)), ([1], [1, 2])]) == 0.5
    assert metrics.identical_share([]) is None
