"""Server-sent events and what is read from them, without a network."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.openai.stream import Answer, Events, ServerFailed, StreamCut

ANSWER = [
    {"choices": [{"text": "Hé", "token_ids": [5], "prompt_token_ids": [1, 2]}]},
    {"choices": [{"text": "llo", "token_ids": [6, 7, 8]}]},
    {"choices": [{"text": "", "token_ids": [0], "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 5}},
]


def taken(events, done: bool = True) -> Answer:
    answer = Answer()
    for number, event in enumerate(events):
        answer.take(json.dumps(event), 0.5 + number)
    if done:
        answer.take("[DONE]", 9.0)
    return answer


@given(st.data())
def test_events_survive_any_cut_on_their_way(data):
    ending = data.draw(st.sampled_from(["\n", "\r\n"]))
    texts = data.draw(st.lists(st.text("aé{}:\"€ ", min_size=1, max_size=8), max_size=6))
    wire = "".join(f": a comment{ending}data: {text}{ending}id: 7{ending}{ending}" for text in texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    events = Events()
    parts = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)])]
    assert [event for part in parts for event in events.feed(part)] == texts


def test_an_event_of_several_lines_is_one():
    assert list(Events().feed(b"data: a\ndata:b\n\ndata: c\n")) == ["a\nb"]


def test_tokens_times_and_counts_of_a_whole_answer():
    answer = taken(ANSWER)
    answer.check()
    assert answer.tokens == [5, 6, 7, 8, 0] and answer.text == "Héllo" and answer.finish_reason == "stop"
    assert [(chunk.tokens, chunk.at_s) for chunk in answer.chunks] == [(1, 0.5), (3, 1.5), (1, 2.5)]
    assert (answer.prompt_tokens, answer.counted, answer.has_ids) == (2, 5, True)


def test_chat_without_ids_counts_what_the_server_says():
    deltas = [{"role": "assistant", "content": ""}, {"content": "Hi"}, {"reasoning_content": "hm"}, {"content": " you"}, {}]
    events = [{"choices": [{"delta": delta}]} for delta in deltas]
    events[-1]["choices"][0]["finish_reason"] = "length"
    answer = taken([*events, ANSWER[-1]])
    answer.check()
    assert answer.text == "Hi you" and not answer.has_ids and answer.counted == 5
    assert [chunk.at_s for chunk in answer.chunks] == [1.5, 2.5, 3.5] and {chunk.tokens for chunk in answer.chunks} == {None}


def test_text_that_comes_without_tokens_is_no_chunk():
    tail = {"choices": [{"text": "!", "token_ids": [], "finish_reason": "stop"}]}
    answer = taken([ANSWER[0], tail])
    answer.check()
    assert answer.text == "Hé!" and len(answer.chunks) == 1


@pytest.mark.parametrize(
    "events, done, kind, words",
    [
        (ANSWER[:2], False, StreamCut, "after 4 tokens"),
        (ANSWER, False, StreamCut, "after 5 tokens"),
        (ANSWER[:2], True, StreamCut, "before the answer did"),
        ([*ANSWER[:3], {"usage": {"completion_tokens": 6}}], True, ServerFailed, "counted 6 tokens and sent 5"),
        ([{"choices": [{"text": "a", "finish_reason": "stop"}]}], True, ServerFailed, "nobody counted"),
        ([{"choices": [{"text": "", "finish_reason": "stop"}]}], True, ServerFailed, "no token came"),
    ],
)
def test_what_is_no_whole_answer_is_a_failure(events, done, kind, words):
    with pytest.raises(kind, match=words):
        taken(events, done).check()


@pytest.mark.parametrize("data", ["{", "[1]", '"text"', '{"error": {"message": "out of\\nmemory"}}', '{"error": "gone"}'])
def test_an_event_that_is_none_is_a_failure(data):
    with pytest.raises(ServerFailed) as caught:
        Answer().take(data, 1.0)
    assert "\n" not in str(caught.value)
