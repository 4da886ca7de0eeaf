"""The machine watched in the background, and cells marked that were measured while clocks were held back."""

import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from harness import lines, nvidia, sampler
from harness.sampler import Sampler


class Gpus:
    """A GPU that is held back from its ``from_sample``-th sample on."""

    def __init__(self, from_sample: int) -> None:
        self.from_sample, self.samples = from_sample, 0

    def sample(self):
        self.samples += 1
        return [{"reasons": ["HwThermalSlowdown"] if self.samples >= self.from_sample else ["GpuIdle"]}]


@pytest.fixture
def gpus(monkeypatch):
    def use(found):
        @contextmanager
        def driver():
            yield found

        monkeypatch.setattr(nvidia, "driver", driver)
        monkeypatch.setattr(sampler, "cpu_throttles", lambda: None)

    return use


def test_samples_are_lines_with_the_time_and_the_load(gpus, tmp_path):
    gpus(Gpus(10**6))
    with Sampler(tmp_path / "s.jsonl", interval_s=0.05):
        time.sleep(0.3)
    found = list(lines.read(tmp_path / "s.jsonl"))
    assert len(found) >= 3 and all(set(s) == {"at", "load_1m", "cpu_busy_percent", "cpu_mhz", "gpus", "throttled"} for s in found)
    assert [s["at"] for s in found] == sorted(s["at"] for s in found)
    assert {s["throttled"] for s in found} == {False}


def test_a_cell_is_marked_by_the_samples_around_it(gpus, tmp_path):
    gpus(Gpus(from_sample=3))
    with Sampler(tmp_path / "s.jsonl", interval_s=0.0001) as watch:
        watch._over.set()  # samples come when asked for alone
        watch._thread.join()
        watch._history.clear()
        watch._gpus.samples = 0
        begun = time.time()
        time.sleep(0.01)
        assert watch.throttled(begun) is False
        time.sleep(0.01)
        assert watch.throttled(time.time()) is False
        time.sleep(0.01)
        assert watch.throttled(time.time()) is True
        time.sleep(0.01)
        assert watch.throttled(begun) is True


def test_a_machine_that_does_not_tell_is_unknown_and_a_hot_cpu_is_seen(gpus, tmp_path, monkeypatch):
    gpus(SimpleNamespace(sample=list))
    with Sampler(tmp_path / "s.jsonl") as watch:
        assert watch.throttled(time.time()) is None
    counts = iter(range(100))
    monkeypatch.setattr(sampler, "cpu_throttles", lambda: next(counts))
    with Sampler(tmp_path / "t.jsonl") as watch:
        assert watch.throttled(time.time()) is True


def test_idling_and_chosen_clocks_are_no_throttling():
    assert nvidia.slowed({"reasons": ["GpuIdle", "ApplicationsClocksSetting"]}) is False
    assert nvidia.slowed({"reasons": ["SwPowerCap"]}) is True
    assert nvidia.slowed({"reasons": "unknown: Not Supported"}) is None


def test_names_of_reasons_and_visible_gpus():
    nvml = SimpleNamespace(nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}-x", nvmlClocksEventReasonAll=7,
                           nvmlClocksEventReasonNone=0, nvmlClocksEventReasonSwPowerCap=4, nvmlClocksEventReasonGpuIdle=1)  # fmt: skip
    assert nvidia._reasons(nvml, 5) == ["GpuIdle", "SwPowerCap"] and nvidia._reasons(nvml, 0) == []
    handles = ["a", "b", "c"]
    assert nvidia._visible(nvml, handles, None) == handles
    assert nvidia._visible(nvml, handles, "2,0") == ["c", "a"]
    assert nvidia._visible(nvml, handles, "GPU-b") == ["b"]
    assert nvidia._visible(nvml, handles, "") == [] == nvidia._visible(nvml, handles, "7")


def test_memory_in_use_is_that_of_all_gpus_where_the_driver_tells():
    nvml = SimpleNamespace(NVMLError=KeyError, nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used={"a": 5, "b": 7}[handle]))
    assert nvidia.Gpus(nvml, ["a", "b"]).used_bytes() == 12
    assert nvidia.Gpus(nvml, ["a", "gone"]).used_bytes() is None and nvidia.Gpus(None, []).used_bytes() is None
