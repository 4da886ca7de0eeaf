"""Other work on the machine is counted without one's own."""

import time

import pytest

from harness import busy


def test_own_work_is_not_other_work(monkeypatch):
    times = iter([(100.0, 40.0, 10.0), (104.0, 47.0, 14.0)])  # in 4 s the machine worked 7 s, this process 4 of them
    monkeypatch.setattr(busy, "_times", lambda: next(times))
    assert busy.OtherWork().cores() == pytest.approx(0.75)


def test_the_clocks_run():
    before = busy._times()
    while time.process_time() % 1000 and busy._times()[2] - before[2] < 0.1:
        pass
    passed, machine, own = (now - then for now, then in zip(busy._times(), before))
    assert own >= 0.1 and machine >= 0.05 and passed >= 0.05


@pytest.mark.parametrize("other, load, busy_now", [(0.4, 2.0, False), (0.6, 0.0, True), (None, 0.6, True), (None, 0.4, False)])
def test_more_than_a_quarter_of_the_cores_is_busy(other, load, busy_now):
    cpu = {"usable_cores": 2, "load_average": [0.0, load, 0.0], "other_work_cores": other}
    assert busy.is_busy(cpu) is busy_now
    assert not busy.is_busy({})


def test_what_went_on_while_measuring_is_told_afterwards():
    assert busy.told_after(0.9, 2).startswith("the machine was busy meanwhile: other work kept 0.9 of 2 cores on average")
    assert busy.told_after(0.5, 2) is None


def test_the_line_names_figures_and_a_way_out():
    line = busy.told({"usable_cores": 2, "load_average": [1.5, 1, 0.5], "other_work_cores": 1.25})
    assert line.startswith("the machine is busy: other work keeps 1.2 of 2 cores (load 1.5 1.0 0.5); stop that")
    assert busy.told({"usable_cores": 2, "load_average": [1.5, 1, 0.5], "other_work_cores": 0.1}) is None
