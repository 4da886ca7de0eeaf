"""The benchmark of both engines' baselines: turns, ratios and whose keys are whose, with made-up engines."""

import json

import pytest
from fake_engine import fake_decoded

from benchmarks import engine_baseline


class Timed:
    """A token every ``round_s``; ``told`` gets its name each time."""

    end_tokens = ()

    def __init__(self, name: str, round_s: float, told: list[str]) -> None:
        self.name, self.round_s, self.told = name, round_s, told

    def render(self, messages):
        return [1]

    def decode(self, strategy, request):
        assert strategy == "baseline" and not request.round_times
        self.told.append(self.name)
        return fake_decoded(range(request.sampling.max_new_tokens), round_s=self.round_s)

    def settings(self):
        return {"of": self.name}


@pytest.fixture
def told(monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(engine_baseline, "PAUSE_S", {})
    round_s = {"torch": 0.01, "vllm": 0.03}
    monkeypatch.setattr(engine_baseline, "build_engine", lambda plan: Timed(plan.engine.name, round_s[plan.engine.name], calls))
    return calls


def test_engines_take_turns_and_the_ratio_is_of_their_speeds(told, tmp_path, capsys):
    file = tmp_path / "made" / "found.json"
    assert engine_baseline.main(["--prompts", "3", "--repetitions", "2", "--output", str(file), "engine.device=cpu", "sampling.max_new_tokens=5"]) == 0
    stored, last = json.loads(file.read_text()), json.loads(capsys.readouterr().out.splitlines()[-1])
    assert stored["tokens_per_s"] == last["tokens_per_s"] == {"torch": pytest.approx(100), "vllm": pytest.approx(100 / 3)}
    assert stored["torch / vllm"] == pytest.approx([3, 3, 3])
    assert stored["engines"] == {name: {"of": name} for name in ("torch", "vllm")}
    assert (stored["suite"], stored["max_new_tokens"]) == ("quick", 5) and "gpus" in stored["environment"]
    assert [len(found) for found in stored["speeds"]["vllm"].values()] == [2, 2, 2]
    measured = told[2 * engine_baseline.WARM_UP :]
    assert len(measured) == 12 and measured[:6] == ["vllm", "torch", "torch", "vllm", "vllm", "torch"]


def test_a_key_of_an_engine_goes_to_those_that_have_it():
    both = ["engine.device=cuda", "suite=three", "+arms.x=1"]
    asked = [*both, "engine.captured_graphs=true", "engine.kv_cache_gib=2", "engine.nonsense=1"]
    assert engine_baseline.shares(asked) == {
        "torch": [*both, "engine.captured_graphs=true", "engine.nonsense=1"],
        "vllm": [*both, "engine.kv_cache_gib=2", "engine.nonsense=1"],
    }


def test_what_is_wrong_is_a_line(told, capsys):
    assert engine_baseline.main(["engine.device=moon"]) == 2 and not told
    assert capsys.readouterr().err.startswith("engine_baseline: engine.device=moon cannot be used")
