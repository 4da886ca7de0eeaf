"""Timing the phases of a round: every phase accounted for, off when told so, and no waiting on a GPU."""

import pytest
import torch
from tiny_decoding import proposers, tiny_target

from harness.engines.torch.decode import decode
from harness.engines.torch.round_clock import PHASES, RoundClock
from harness.measuring import Schedule, measure
from harness.metrics import chunks_s
from harness.records import Request, Sampling
from harness.suites import Row

PROMPT = tuple(range(5, 15))


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    model = tiny_target()
    return model, proposers(model, tmp_path_factory.mktemp("drafters"))


@pytest.mark.parametrize("strategy", ["baseline", "mtp", "dflash", "ddtree"])
def test_phases_fill_the_time_between_deliveries(arms, strategy):
    model, found = arms
    decoded = decode(model, found[strategy], [Request(PROMPT, (), Sampling(max_new_tokens=12))])[0]
    for this, chunk in zip(decoded.rounds, chunks_s(decoded), strict=True):
        phases = [getattr(this, f"{phase}_s") for phase in PHASES]
        assert min(phases) >= 0 and sum(phases) <= chunk + 1e-5
    if strategy == "ddtree":
        assert sum(this.build_s for this in decoded.rounds if this.proposed) > 0
    assert "drafting_done" not in vars(found[strategy]), "the clock is taken back"


def test_without_round_times_the_clock_is_never_asked(arms, monkeypatch):
    model, found = arms
    monkeypatch.setattr(RoundClock, "seconds", None)
    request = Request(PROMPT, (), Sampling(max_new_tokens=12), round_times=False)
    (with_times,) = decode(model, found["ddtree"], [request])
    assert {getattr(this, f"{phase}_s") for this in with_times.rounds for phase in PHASES} == {None}
    assert all(this.at_s > 0 for this in with_times.rounds)


def test_the_schedule_hands_the_wish_to_the_engine():
    from fake_engine import FakeEngine

    row = Row(id="t/1", category="chat", turns=("hello",))
    for wish in (True, False):
        engine = FakeEngine(None, {})
        list(measure(engine, Schedule([row], ["baseline"], Sampling(max_new_tokens=2), 1, 0, round_times=wish)))
        assert engine.seen[0][1].round_times is wish


class Event:
    """A stand-in for ``torch.cuda.Event`` that knows when somebody waits for it."""

    recorded, waited = 0, 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.recorded += 1
        self.number = Event.recorded

    def synchronize(self) -> None:
        Event.waited += 1

    def elapsed_time(self, later) -> float:
        assert Event.waited, "asked before the last event came to pass"
        return float(later.number - self.number)


def test_on_a_gpu_events_are_recorded_and_nobody_waits_before_the_end(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.recorded = Event.waited = 0
    clock = RoundClock(torch.device("cuda"), wanted=True)
    for drafted in (True, False):
        clock.begin()
        for phase in PHASES if drafted else PHASES[1:]:
            clock.mark(phase)
    assert Event.recorded == 9 and Event.waited == 0
    first, second = clock.seconds()
    assert Event.waited == 1
    assert first == {f"{phase}_s": 0.001 for phase in PHASES}
    assert second == {"draft_s": 0.001, "build_s": 0.0, "verify_s": 0.001, "commit_s": 0.001}
    assert RoundClock(torch.device("cuda"), wanted=True).seconds() == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_events_of_a_real_gpu():
    clock = RoundClock(torch.device("cuda"), wanted=True)
    clock.begin()
    x = torch.rand(4096, 4096, device="cuda")
    for phase in PHASES:
        x = x @ x
        clock.mark(phase)
    (found,) = clock.seconds()
    assert all(0 < seconds < 10 for seconds in found.values())
