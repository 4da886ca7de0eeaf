"""Whole rounds on a GPU's road, in Triton's interpreter without one: exact, and never read back by the host."""

import pytest
import torch
from interpreted import DEVICE, INTERPRETED
from tiny_decoding import greedy, proposers, tiny_config, tiny_target, told
from torch.utils._python_dispatch import TorchDispatchMode

from harness.engines.torch.decode import decode, decode_with
from harness.engines.torch.rounds import Rounds, needed_capacity
from harness.engines.torch.tree_size import CostTable
from harness.records import Request, Sampling
from kernels import device

STRATEGIES = ["baseline", "mtp", "dflash", "ddtree"]
READS_BACK = {"aten::_local_scalar_dense", "aten::nonzero", "aten::item", "aten::equal", "aten::masked_select"}


@pytest.fixture(scope="module")
def model():
    return tiny_target(tiny_config("qwen3", vocab_size=64, head_dim=16, num_layers=2, hidden_size=16, num_heads=2, num_kv_heads=1, intermediate_size=16), seed=3).to(DEVICE)


@pytest.fixture(autouse=True)
def on_a_gpus_road(monkeypatch):
    monkeypatch.setattr(device, "interpreted", INTERPRETED)


@pytest.fixture
def arms(model, tmp_path):
    sliding = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 6}
    return proposers(model, tmp_path, k=2, budget=9, head_dim=16, **sliding)


class NothingReadBack(TorchDispatchMode):
    """Fails at whatever makes the host wait for a number of the device, or gives a shape that depends on one."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.name().split(".")[0] not in READS_BACK, f"{function.name()} reads a number back"
        return function(*args, **(kwargs or {}))


class Watched(Rounds):
    def step(self):
        with NothingReadBack():
            super().step()


def requests(**sampling) -> list[Request]:
    return [
        Request(prompt, (), Sampling(max_new_tokens=count, seed=number, **sampling), round_times=False)
        for number, (prompt, count) in enumerate([((5, 6, 7, 8, 9), 5), ((1,), 7)])
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rounds_of_kernels_say_what_the_references_say(model, arms, strategy, monkeypatch):
    for filters in ({}, {"temperature": 1.0, "top_k": 20}) if strategy == "ddtree" else ({},):
        asked = requests(**filters)
        found = [told(decoded) for decoded in decode(model, arms[strategy], asked)]
        if not filters:
            wanted = [greedy(model, request.prompt_ids, request.sampling.max_new_tokens) for request in asked]
            assert [list(tokens) for tokens, *_ in found] == wanted
        assert [told(decode(model, arms[strategy], [request])[0]) for request in asked] == found
        if DEVICE == "cpu":
            with monkeypatch.context() as plain:
                plain.setattr(device, "interpreted", False)
                arms[strategy]._sizes = None  # what it holds is in the form of a GPU
                assert [told(decoded) for decoded in decode(model, arms[strategy], asked)] == found
            arms[strategy]._sizes = None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_read_back_within_a_round(model, arms, strategy):
    asked = requests()

    rounds = Watched(model, arms[strategy], len(asked), needed_capacity(model, arms[strategy], asked), False)
    assert arms[strategy].capturable and len(decode_with(rounds, asked)) == 2


class WatchedHalves(Rounds):
    def draft(self):
        with NothingReadBack():
            super().draft()

    def verify(self, rows):
        with NothingReadBack():
            super().verify(rows)


@pytest.mark.parametrize("verify_s, nodes", [((1.0, 1.0), 9), ((1.0, 9.0), 3)], ids=["free rows", "dear rows"])
def test_where_trees_are_cut_their_size_alone_is_read_back_between_the_halves(model, tmp_path, monkeypatch, verify_s, nodes):
    monkeypatch.setattr("strategies.ddtree.proposer.LADDER", (4, 10))
    auto = proposers(model, tmp_path, budget="auto", head_dim=16)["ddtree"]
    asked = requests()
    costs = CostTable(2, (2, 64), (4, 10), (1.0, 1.0), (verify_s, verify_s))
    rounds = WatchedHalves(model, auto, len(asked), needed_capacity(model, auto, asked), False, costs)
    for request, decoded in zip(asked, decode_with(rounds, asked), strict=True):
        assert list(decoded.tokens) == greedy(model, request.prompt_ids, request.sampling.max_new_tokens)
        assert {r.proposed for r in decoded.rounds} == {nodes}


def test_what_reads_back_is_noticed():
    with pytest.raises(AssertionError, match="reads a number back"), NothingReadBack():
        int(torch.ones(1, device=DEVICE))
