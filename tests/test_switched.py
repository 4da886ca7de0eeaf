"""One graph in which the device decides what runs next."""

from enum import IntEnum
from functools import partial

import pytest
import torch

from kernels import Recorded, Switched, can_switch, switched

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def switched_error(name: str, value: int) -> IntEnum:
    return IntEnum("CUresult", {name: value})[name]


@pytest.fixture
def asked_anew():
    can_switch.cache_clear()
    yield
    can_switch.cache_clear()


@pytest.mark.parametrize("installed, driver, expected", [("13.3.1", 13000, True), ("13.0.0", 12080, True), ("13.3.1", 12070, False), ("12.9.4", 13000, False)])
def test_old_drivers_and_old_bindings_cannot(monkeypatch, asked_anew, installed, driver, expected):
    monkeypatch.setattr(switched, "version", lambda name: installed)
    monkeypatch.setattr(switched, "_driver_version", lambda: driver)
    monkeypatch.setattr(switched.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(switched, "_chooser", lambda device: None)
    assert can_switch() is expected


def test_a_kernel_that_the_driver_does_not_take_is_no_fault(monkeypatch, asked_anew):
    def refused(device):
        switched._given((switched_error("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", 222),))

    monkeypatch.setattr(switched, "version", lambda name: "13.3.1")
    monkeypatch.setattr(switched, "_driver_version", lambda: 13000)
    monkeypatch.setattr(switched.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(switched, "_chooser", refused)
    assert not can_switch()


def test_without_bindings_nothing_can(monkeypatch, asked_anew):
    def missing(name):
        raise switched.PackageNotFoundError(name)

    monkeypatch.setattr(switched, "version", missing)
    assert not can_switch()


@needs_gpu
def test_the_device_decides_which_case_runs():
    wanted, picked, total = torch.zeros(3, 1, dtype=torch.int64, device="cuda").unbind(0)
    pool = torch.cuda.graph_pool_handle()

    def add(power):
        total.add_((total * 0 + 2) ** power)  # with memory of its own within the graph

    first = Recorded(lambda: picked.copy_(wanted), pool)
    graph = Switched(first, picked, [Recorded(partial(add, power), pool) for power in range(5)])
    total.zero_()
    for number in (3, 0, 4, 4, 1):
        wanted.fill_(number)
        graph()
    assert int(total) == 8 + 1 + 16 + 16 + 2


@needs_gpu
def test_what_cuda_refuses_is_named():
    picked = torch.zeros(1, dtype=torch.int64, device="cuda")
    nothing = Recorded(lambda: picked.zero_())
    with pytest.raises(RuntimeError, match="CUDA refused a graph with a switch: CUDA_ERROR"):
        Switched(nothing, picked, [])
