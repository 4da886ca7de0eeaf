"""MTP on vLLM: a model with heads of its own gives its baseline's tokens; one without is told so in a line."""

import pytest
from vllm_runs import ask_child, configuration, needs_vllm, request
from vllm_tiny import write_mimo, write_model

import strategies.mtp
from harness.errors import UserError


@pytest.mark.vllm
@needs_vllm[1]
def test_a_tiny_model_with_native_heads_equals_its_baseline(tmp_path):
    write_mimo(tmp_path / "mimo")
    runs = [{"name": "run", "batch": 4, "requests": [request([i, 5, 7], max_new_tokens=40) for i in range(8)]}]
    settings = {"max_model_len": 256}
    strategy = configuration("mtp", drafter="native", k=2)
    plain = ask_child(tmp_path, tmp_path / "mimo", configuration("baseline"), runs, settings=settings)["run"]["answers"]
    found = ask_child(tmp_path, tmp_path / "mimo", strategy, runs, settings=settings)
    assert found["settings"]["speculative"] == {"method": "mtp", "num_speculative_tokens": 2}
    answers = found["run"]["answers"]
    assert {name: answer["tokens"] for name, answer in answers.items()} == {name: answer["tokens"] for name, answer in plain.items()}
    assert sum(r["accepted"] for answer in answers.values() for r in answer["rounds"]) > 0


def test_a_head_beside_the_model_is_refused_with_the_way_out(tmp_path):
    write_model(tmp_path / "llama")
    with pytest.raises(UserError, match="strategy.drafter=smollm2-135m: vLLM runs only a model's own MTP heads.*strategy.drafter=native"):
        strategies.mtp.vllm_arguments(tmp_path / "llama", "cpu", "mtp", "smollm2-135m", 3)
    with pytest.raises(UserError, match="llama has no MTP heads.*MiMo"):
        strategies.mtp.vllm_arguments(tmp_path / "llama", "cpu", "mtp", "native", 3)
