"""Each figure against a request small enough to count by hand."""

import pytest

from harness import metrics
from harness.records import Decoded, Round

# Prefill gives the token at 0.5 s. Three rounds deliver 3, 1 and 2 tokens; the last accepted 3 and was trimmed.
REQUEST = Decoded(
    tokens=(5, 6, 7, 8, 9, 10, 11),
    finish_reason="length",
    ttft_s=0.5,
    end_s=2.0,
    rounds=(
        Round(proposed=4, depth=3, width=2, accepted=2, emitted=3, at_s=1.0, draft_s=0.1, verify_s=0.2),
        Round(proposed=4, depth=2, width=3, accepted=0, emitted=1, at_s=1.2, draft_s=0.1, verify_s=0.1),
        Round(proposed=4, depth=4, width=1, accepted=3, emitted=2, at_s=2.0, draft_s=0.1, verify_s=0.6),
    ),
)
ONE_TOKEN = Decoded((0,), "stop", 0.5, 0.5)


def test_times_and_speeds():
    assert metrics.ttft_s(REQUEST) == 0.5
    assert metrics.decode_s(REQUEST) == 1.5
    assert metrics.tpot_s(REQUEST) == 0.25
    assert metrics.decode_tokens_per_s(REQUEST) == 4.0
    assert metrics.end_to_end_tokens_per_s(REQUEST) == 3.5
    assert metrics.chunks_s(REQUEST) == pytest.approx([0.5, 0.2, 0.8])


def test_acceptance_both_ways():
    assert metrics.acceptance_committed(REQUEST) == 2.0
    assert metrics.acceptance_verified(REQUEST) == pytest.approx(1 + 5 / 3)


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


def test_histogram_and_depths():
    assert metrics.accepted_histogram([REQUEST]) == [1, 0, 1, 1]
    # Depth 1: 2 of 3 rounds. Depth 2: both of those. Depth 3: one of the two, each 3 deep. Depth 4: the one that got there.
    assert metrics.acceptance_by_depth([REQUEST]) == pytest.approx([2 / 3, 1, 1 / 2, 0])
    assert metrics.accepted_histogram([]) == metrics.acceptance_by_depth([]) == []


def test_mean_round_accounts_for_the_time_between_deliveries():
    mean = metrics.mean_round([REQUEST])
    assert mean["proposed"] == 4 and mean["depth"] == 3 and mean["width"] == 2
    assert mean["chunk_s"] == pytest.approx(0.5)
    assert mean["host_s"] == pytest.approx(0.5 - 0.1 - 0.3)


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
