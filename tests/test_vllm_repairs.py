"""What is put right of vLLM's own DFlash, as far as it runs without vLLM."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from vllm_standin import plugin

SLOTS = 7


@pytest.fixture
def asked(monkeypatch):
    """What the keeper of pages is asked for, once a runner with the given configuration has loaded its models."""
    with plugin():
        worker = import_module("strategies.dflash.vllm_worker")
        monkeypatch.setattr(worker.KVCacheManager, "allocate_slots", worker.KVCacheManager.allocate_slots)

        def allocate(config: dict, **told):
            model = SimpleNamespace(model=SimpleNamespace())
            drafter = SimpleNamespace(num_speculative_tokens=SLOTS, device=torch.device("cpu"), model=model)
            worker.repair_loaded(SimpleNamespace(vllm_config=SimpleNamespace(**config), drafter=drafter))
            return worker.KVCacheManager().allocate_slots("request", 48, **told)

        yield allocate


@pytest.mark.parametrize("given, pages_for", [(0, SLOTS + 1), (SLOTS, SLOTS + 1), (31, 31)])
def test_a_request_has_pages_for_its_next_block(asked, given, pages_for):
    """The first step gives none, later ones the number of speculative tokens: the drafter's slots, or a tree's nodes."""
    assert asked({}, num_lookahead_tokens=given) == ("request", 48, pages_for, False)


def test_pages_that_are_filled_from_elsewhere_stay_as_many_as_they_are(asked):
    assert asked({}, num_lookahead_tokens=0, delay_cache_blocks=True) == ("request", 48, 0, True)


def test_a_version_that_counts_a_blocks_rows_is_left_alone(asked):
    assert asked({"num_lookahead_tokens": SLOTS + 1}, num_lookahead_tokens=3) == ("request", 48, 3, False)
