"""Timing the phases of a round: every phase accounted for, off when told so, and no waiting on a GPU."""

import itertools
import sys
from types import SimpleNamespace

import pytest
import torch
from tiny_decoding import proposers, tiny_target

from harness.engines.torch.decode import decode
from harness.engines.torch.round_clock import PHASES, RoundClock
from harness.measuring import Schedule, measure
from harness.metrics import chunks_s
from harness.records import Request, Sampling
from harness.suites import Row
from kernels import device

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


@pytest.fixture
def device_clock(monkeypatch):
    """A GPU's road on the CPU: a stand-in for the kernel that writes the device's clock, one microsecond a mark."""
    ticks = itertools.count(1)

    def stamp(ring, counter, mark):
        ring[int(counter) % len(ring), mark] = 1000 * next(ticks)

    monkeypatch.setattr(device, "interpreted", True)
    monkeypatch.setitem(sys.modules, "kernels.triton_kernels.stamp", SimpleNamespace(stamp=stamp))


def test_on_a_gpu_the_devices_clock_is_read_after_the_last_round(device_clock):
    clock = RoundClock(torch.device("cpu"), wanted=True, most=4)
    for _ in range(2):  # the second batch knows nothing of the first
        clock.reset()
        for _ in range(3):
            clock.begin()
            for phase in PHASES:
                clock.mark(phase)
        assert clock.seconds() == [{f"{phase}_s": pytest.approx(1e-6) for phase in PHASES}] * 3
    assert RoundClock(torch.device("cpu"), wanted=True, most=4).seconds() == []


def test_on_a_gpu_a_strategy_that_never_marks_its_draft_builds_nothing(device_clock):
    clock = RoundClock(torch.device("cpu"), wanted=True, most=4)
    clock.reset()
    clock.begin()
    for phase in PHASES[1:]:
        clock.mark(phase)
    (found,) = clock.seconds()
    assert found == {"draft_s": pytest.approx(1e-6), "build_s": 0.0, "verify_s": pytest.approx(1e-6), "commit_s": pytest.approx(1e-6)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_clock_of_a_real_gpu():
    clock = RoundClock(torch.device("cuda"), wanted=True, most=4)
    clock.reset()
    clock.begin()
    x = torch.rand(4096, 4096, device="cuda")
    for phase in PHASES:
        x = x @ x
        clock.mark(phase)
    (found,) = clock.seconds()
    assert all(0 < seconds < 10 for seconds in found.values())
