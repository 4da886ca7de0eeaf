"""A replayed step by itself: what the pieces leave is what the kernels say, and recording them leaves everything as it was."""

from types import SimpleNamespace

import pytest
import torch
from replays import Again
from vllm_standin import plugin

from kernels import GreedyChoices, accepted_path, best_first_tree, emitted, row_mask
from strategies.ddtree.vllm_plugin.attention import FixedRows
from strategies.ddtree.vllm_plugin.replayed import ReplayedStep, recorder

SLOTS, BUDGET, VOCABULARY, MOST = 3, 9, 4, 4
ROWS = BUDGET + 1


class Kept:
    """Caches that remember which rows were to move."""

    def __init__(self) -> None:
        self.paths = []

    def keep(self, slots, starts, path) -> None:
        assert starts.tolist() == [ROWS * index for index in range(len(path))]
        self.paths.append(path.clone())


@pytest.mark.parametrize("requests", [1, 3])
def test_pieces_say_what_the_kernels_say_and_recording_them_changes_nothing(requests):
    torch.manual_seed(requests)
    fixed, caches, recorded = FixedRows(MOST, ROWS, torch.device("cpu")), Kept(), []
    bases = torch.tensor([20, 7, 33])[:requests, None]
    linear = torch.zeros(80, dtype=torch.int64)
    linear[: requests * ROWS] = (bases + torch.arange(ROWS)).flatten()
    positions = linear.clone()

    def record(work):
        recorded.append(work.__name__)
        return Again(work)

    step = ReplayedStep(requests, fixed, positions, SLOTS, lambda hidden: hidden.view(requests, SLOTS, VOCABULARY), caches, record)
    assert torch.equal(positions, linear) and step.only_trees and fixed.takes(step)
    columns = best_first_tree(torch.arange(requests), torch.randn(requests, SLOTS, VOCABULARY), BUDGET)[:3]
    names, slots = [f"request {index}" for index in range(requests)], torch.arange(80)
    for number in range(3):
        if number == 0:
            step.load(names, torch.stack(columns, dim=1).unbind())
        positions.copy_(linear)
        step.place()
        tokens, parents, depths = columns
        assert torch.equal(positions[: requests * ROWS].view(requests, ROWS), bases + depths)
        assert torch.equal(positions[requests * ROWS :], linear[requests * ROWS :])
        assert torch.equal(fixed.lengths[:requests], bases[:, 0]) and torch.equal(fixed.mask[:requests], row_mask(parents))
        logits, before = torch.randn(requests * ROWS, VOCABULARY), len(caches.paths)
        step.accept(logits, slots)
        path, kept, bonus = accepted_path(tokens, parents, depths, GreedyChoices(logits.view(requests, ROWS, -1)), SLOTS + 1)
        assert torch.equal(step.sampled, emitted(tokens, path, kept, bonus, SLOTS + 1)) and torch.equal(positions, linear)
        told = (step.bonus, bonus), (step.given, kept), (step.rejected, ROWS - kept)
        assert all(own.dtype == torch.int32 and torch.equal(own.long(), expected) for own, expected in told)
        *recording, moved = caches.paths[before:]
        assert torch.equal(moved, path) and all(torch.equal(own, torch.arange(SLOTS + 1).expand_as(path)) for own in recording)
        first = step.order.view(requests, ROWS)[:, : SLOTS + 1] - ROWS * torch.arange(requests)[:, None]
        assert torch.equal(first, path)
        hidden = torch.randn(requests * SLOTS, VOCABULARY)
        assert len(step.grow(hidden)) == requests * SLOTS and step.grown and step.names == names
        columns = best_first_tree(bonus, hidden.view(requests, SLOTS, VOCABULARY), BUDGET)[:3]
        assert torch.equal(step.trees, torch.stack(columns)) and torch.equal(step.drafts, columns[0][:, 1:])
        assert torch.equal(step.depths, columns[2])
    assert recorded == ["_place_rows", "_accept_rows", "_grow_trees"]
    step.accept(logits, slots.clone())
    assert recorded[3:] == ["_accept_rows"], "slots that are elsewhere are none that a graph reads"


def test_a_stand_in_notices_what_a_graph_would_not():
    fixed, positions = FixedRows(MOST, ROWS, torch.device("cpu")), torch.arange(80)
    step = ReplayedStep(1, fixed, positions, SLOTS, lambda hidden: hidden, Kept(), Again)
    step.place()
    step.trees = step.trees.clone()
    with pytest.raises(AssertionError, match="no longer where it was recorded"):
        step.place()


def test_trees_are_their_requests_in_whatever_order_these_come():
    trees = {name: torch.stack([torch.full((ROWS,), number), torch.arange(ROWS) - 1, torch.arange(ROWS)]) for number, name in enumerate("abc")}
    with plugin() as vllm:
        runner = vllm.replaying.ReplayingRunner()
    params = SimpleNamespace(temperature=0.0)
    runner.requests = {name: SimpleNamespace(sampling_params=params, output_token_ids=[], num_prompt_tokens=5) for name in trees}
    runner.input_batch, runner.drafter = SimpleNamespace(req_ids=["a", "b"]), SimpleNamespace(slots=SLOTS, logits_of_slots=None)
    runner.chains, runner.max_model_len, runner.positions = set(), 90, torch.arange(80)
    runner._fixed, runner._record, runner._caches = FixedRows(MOST, ROWS, torch.device("cpu")), Again, Kept()
    runner._replayed, runner._last, runner._grown = {}, None, dict(trees)

    def verified(*names: str) -> list[int]:
        runner.input_batch.req_ids = list(names)
        drafts = dict.fromkeys(names, [0] * BUDGET)
        runner._take(SimpleNamespace(scheduled_spec_decode_tokens=drafts, total_num_scheduled_tokens=ROWS * len(names)), None)
        assert runner._step is runner.drafter.replayed and runner._step.names == list(names)
        return runner._step.trees[0, :, 0].tolist()

    assert verified("a", "b") == [0, 1]
    runner._step.trees[0] += 10  # as if grown
    runner._step.grown = True
    assert verified("a", "b") == [10, 11]
    runner._step.grown = True
    assert verified("b", "a") == [11, 10], "in another order"
    runner._step.trees[0] += 10
    runner._step.grown = True
    assert verified("a") == [20]
    assert verified("b", "c") == [21, 2], "one that waited has its own"
    del runner.requests["a"]
    runner._step.grown = True
    runner._keep_trees()
    assert runner._grown["b"][0, 0] == 21 and not runner._step.grown


def test_pieces_are_recorded_with_vllms_graphs_and_leave_nothing_behind():
    caches, device = Kept(), torch.device("cpu")
    with plugin() as vllm:

        class Runner(vllm.replaying.ReplayingRunner, type("Stock", (), {"capture_model": lambda self: 7})):
            pass

        runner = Runner()
    table = SimpleNamespace(slot_mapping=SimpleNamespace(gpu=torch.full((80,), -1)))
    runner.input_batch, runner.compilation_config = SimpleNamespace(block_table=[table]), SimpleNamespace(max_cudagraph_capture_size=39)
    runner.drafter = SimpleNamespace(
        slots=SLOTS, kv_cache_gid=0, hidden_size=VOCABULARY, dtype=torch.float32,
        logits_of_slots=lambda hidden: hidden.view(-1, SLOTS, VOCABULARY),
    )  # fmt: skip
    runner.device, runner.positions, runner.max_num_reqs = device, torch.zeros(80, dtype=torch.int64), MOST
    runner._fixed, runner._record, runner._caches = FixedRows(MOST, ROWS, device), Again, caches
    runner._replayed, runner._last = {}, None
    assert runner.capture_model() == 7
    assert list(runner._replayed) == [1, 2, 3], "as many as vLLM captures passes for"
    assert all(step._accept and step._grow and not step.grown and not step.names for step in runner._replayed.values())
    assert caches.paths and all(torch.equal(path, torch.arange(SLOTS + 1).expand_as(path)) for path in caches.paths)
    assert not runner._fixed._counts.any()


def test_nothing_is_recorded_without_a_gpu_or_where_vllm_captures_nothing():
    assert recorder(torch.device("cpu")) is None and recorder(torch.device("cuda"), captures=False) is None
