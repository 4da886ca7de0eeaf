"""Counters from the text of /metrics, as vLLM writes it."""

import pytest

from harness.engines.openai.prometheus import Counters, gauge, prefix_caching, samples
from harness.records import Drafting

TEXT = """# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="a \\"b\\" {c}"} 120.0
vllm:generation_tokens_total{engine="1",model_name="m"} 30.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_drafts_total{engine="0"} 40.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 640.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 70.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 20.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 35.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 0.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:num_requests_running{engine="0"} 3.0 1700000000
process_open_fds NaN
this is no sample
"""


def test_samples_with_labels_and_without():
    found = list(samples(TEXT))
    assert found[0] == ("vllm:generation_tokens_total", {"engine": "0", "model_name": 'a \\"b\\" {c}'}, 120.0)
    assert len(found) == 13 and found[-1][0] == "process_open_fds"


def test_counters_are_summed_over_engines_and_ordered_by_depth():
    assert Counters.of(TEXT) == Counters(150, 40, 640, 70, (35, 20, 0))
    assert Counters.of("process_open_fds 4\n") is None
    assert Counters.of("vllm:generation_tokens_total 7\n") == Counters(7)


def test_gauges_and_prefix_caching():
    assert gauge(TEXT, "kv_cache_usage_perc") == 0.25 and gauge(TEXT, "num_requests_running") == 3
    assert gauge(TEXT, "num_requests_waiting") is None
    assert prefix_caching(TEXT) is True and prefix_caching(TEXT.replace('"True"', '"False"')) is False
    assert prefix_caching("") is None


def test_a_difference_counts_what_came_between():
    before = Counters(50, None)
    assert Counters(150, 40, 640, 70, (35, 20, 0)).since(before) == Counters(100, 40, 640, 70, (35, 20, 0))
    assert Counters(9, 4, 8, 2, (2, 1)).since(Counters(5, 3, 6, 1, (1,))) == Counters(4, 1, 2, 1, (1, 1))


@pytest.mark.parametrize(
    "counted, requests, expected",
    [
        # Two answers of 5 tokens: without drafts every token after the first is a round.
        (Counters(10), 2, Drafting(8, 0, 0)),
        # One answer of 9 tokens in 3 rounds that accepted 3, 0 and 3: the last was trimmed by one token.
        (Counters(8, 3, 12, 6, (2, 2, 2, 0)), 1, Drafting(3, 12, 6, (2, 2, 2))),
        # One answer of 9 tokens: 3 rounds that accepted 3 in all, and 2 that proposed nothing.
        (Counters(9, 3, 12, 3, (2, 1)), 1, Drafting(5, 12, 3, (2, 1))),
    ],
)
def test_rounds_behind_answers(counted, requests, expected):
    assert counted.drafting(requests) == expected
