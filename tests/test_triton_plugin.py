"""Steps of the DDTree plugin for vLLM on a GPU's road: what the references give, and nothing read back by the host.

vLLM is stood in for: its runner gives out positions and slots, its drafter random logits, its layers random queries.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from interpreted import DEVICE, INTERPRETED
from replays import Again
from test_triton_rounds import NothingReadBack
from test_vllm_parts import ORDINARY
from vllm_standin import plugin

from kernels import device
from strategies.ddtree.vllm_plugin.replayed import ReplayedStep

HEADS, KV_HEADS, DIM, PAGE, HIDDEN, VOCABULARY, SLOTS, BUDGET, LAYERS = 2, 1, 16, 16, 6, 4, 3, 9, 2
LONGEST = 200


@pytest.fixture(scope="module")
def vllm():
    with plugin() as modules:
        yield modules


class StockRunner:
    """What vLLM's runner does in a step, for ``prompts`` (their lengths) that are all there from the begin."""

    def __init__(self, flash, prompts: list[int], temperatures: list[float], full: bool = False) -> None:
        names = [f"request {number}" for number in range(len(prompts))]
        self.device, self.max_model_len, self.num_spec_tokens = torch.device(DEVICE), LONGEST, BUDGET
        self.max_num_reqs, self.uniform = 5, []
        self.vllm_config = SimpleNamespace(
            additional_config={"ddtree": {"budget": BUDGET, "full_graphs": full}}, model_config=SimpleNamespace(seed=0),
            compilation_config=SimpleNamespace(max_cudagraph_capture_size=512),
            speculative_config=SimpleNamespace(
                num_speculative_tokens=BUDGET, draft_model_config=SimpleNamespace(hf_config=SimpleNamespace(block_size=SLOTS + 1)),
            ),
        )  # fmt: skip
        self.requests = {
            name: SimpleNamespace(
                output_token_ids=[], num_prompt_tokens=prompt,
                sampling_params=SimpleNamespace(**ORDINARY, temperature=temperature, top_k=3, top_p=0.9, seed=number),
            )
            for number, (name, prompt, temperature) in enumerate(zip(names, prompts, temperatures, strict=True))
        }  # fmt: skip
        self.input_batch = SimpleNamespace(req_ids=names, num_computed_tokens_cpu=np.zeros(len(prompts), dtype=np.int64))
        self.discard_request_mask = SimpleNamespace(np=np.zeros(len(prompts), dtype=bool))
        self.positions = torch.zeros(400, dtype=torch.int64, device=DEVICE)
        self.slots = torch.full((400,), -1, dtype=torch.int64, device=DEVICE)
        pages = -(-LONGEST // PAGE)
        self.table = torch.randperm(len(prompts) * pages).view(len(prompts), pages).int().to(DEVICE)
        caches = torch.randn(LAYERS, 2, len(prompts) * pages, PAGE, KV_HEADS, DIM).to(DEVICE)
        self.layers = {str(number): SimpleNamespace(impl=flash.TreeFlashImpl(DIM), kv_cache=cache) for number, cache in enumerate(caches)}

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        for index, (begin, new) in enumerate(zip(self.input_batch.num_computed_tokens_cpu.tolist(), num_scheduled_tokens)):
            start = sum(num_scheduled_tokens[:index])
            positions = torch.arange(begin, begin + new, device=DEVICE)
            self.positions[start : start + new] = positions
            self.slots[start : start + new] = self.table[index, positions // PAGE].long() * PAGE + positions % PAGE

    def _determine_batch_execution_and_padding(self, *, force_uniform_decode=None, **shape):
        self.uniform.append(force_uniform_decode)

    def _build_attention_metadata(self, num_tokens, num_reqs, max_query_len, for_cudagraph_capture=False):
        metadata = SimpleNamespace(slot_mapping=self.slots, block_table=self.table[:num_reqs])
        return dict.fromkeys(self.layers, metadata), None

    def propose_draft_token_ids(self, scheduler_output, sampled, sampling, hidden, sample_hidden, features, drafted, common, slot_mappings):
        self.told = torch.cat([own[: scheduler_output.total_num_scheduled_tokens] for own in features], dim=-1), self.positions.clone()
        return self.drafter.propose(self.block)

    def sample_tokens(self, grammar_output):
        raise NotImplementedError


class NothingAsked(NothingReadBack):
    """Refuses, besides, what asks a tensor of the host for its numbers without a word to the dispatcher, and lists that become
    tensors, which a GPU would wait for."""

    NAMES = ("tolist", "cpu", "item", "numpy", "__bool__", "__int__", "__float__", "__index__")

    def __enter__(self):
        self.usual = {name: getattr(torch.Tensor, name) for name in self.NAMES}
        self.tensor = torch.tensor
        for name in self.NAMES:
            setattr(torch.Tensor, name, self.refuse(f"Tensor.{name}"))
        torch.tensor = self.refuse("torch.tensor")
        return super().__enter__()

    def __exit__(self, *raised):
        for name, usual in self.usual.items():
            setattr(torch.Tensor, name, usual)
        torch.tensor = self.tensor
        return super().__exit__(*raised)

    @staticmethod
    def refuse(name):
        def refused(*args, **kwargs):
            raise AssertionError(f"{name} makes the host wait")

        return refused


def decode(vllm, steps: int, temperatures: list[float], watched: bool = False, full: bool = False) -> list:
    """Everything that each step gave. ``full``: steps of whole trees attend as a captured pass does, with what it was captured with,
    and are replayed where all requests are greedy."""
    torch.manual_seed(0)
    stock = StockRunner(vllm.flash_attention, [20, 33, 5], temperatures, full)
    (vllm.replaying.ReplayingRunner if full else vllm.runner.TreeRunner).adopt(stock, vllm.flash_attention.TreeFlashImpl)
    stock._target_layers, stock.drafter.model = stock.layers, SimpleNamespace(compute_logits=lambda hidden: hidden)
    drafts, given, told = {}, [[] for _ in stock.requests], []
    if full:
        captured = stock._build_attention_metadata(num_tokens=30, num_reqs=3, max_query_len=10, for_cudagraph_capture=True)[0]
        nothing = torch.full((30, HEADS * DIM), 3.0, device=DEVICE)
        stock.layers["0"].impl.forward(None, nothing.view(30, HEADS, DIM), None, None, stock.layers["0"].kv_cache, captured["0"], nothing)
        assert (nothing == 3).all(), "no request has rows while a pass is captured"
        rows = (stock.drafter.positions, stock.drafter._slot_mapping_buffer)
        assert all(len(own) == 8 + BUDGET for own in rows), "a block's rows may be padded to a tree's"
    for number in range(steps):
        if number == 3:  # as the scheduler does when rows are scarce
            drafts["request 1"] = drafts["request 1"][:4]
            del drafts["request 2"]
        new = [len(drafts.get(name, ())) + 1 if number else state.num_prompt_tokens for name, state in stock.requests.items()]
        stock.slots.fill_(-1)
        logit_rows = sum(len(drafts.get(name, ())) + 1 for name in stock.requests)
        logits = torch.randn(logit_rows, VOCABULARY).to(DEVICE)
        stock.block = torch.randn(len(new) * SLOTS, VOCABULARY).to(DEVICE)
        features = list(torch.randn(3, sum(new) + 5, HIDDEN).to(DEVICE))
        query, key, value = (torch.randn(LAYERS, sum(new), heads, DIM).to(DEVICE) for heads in (HEADS, KV_HEADS, KV_HEADS))
        scheduled = SimpleNamespace(scheduled_spec_decode_tokens=drafts, total_num_scheduled_tokens=sum(new))
        # The first tree of all has the caches' addresses sent.
        with NothingAsked() if watched and number > 1 else torch.no_grad():
            stock._prepare_inputs(scheduled, new)
            positions = stock.positions[: sum(new)].clone()
            shape = {"num_tokens": sum(new), "num_reqs": len(new), "max_query_len": max(new)}
            stock._determine_batch_execution_and_padding(**shape)
            metadata, _ = stock._build_attention_metadata(**shape)
            assert vllm.flash_attention.TreeFlashImpl.trees_alone == (len(drafts) == len(new))
            replayed = full and new == [BUDGET + 1] * 3
            assert stock.uniform.pop() is (None if replayed or not full else False)
            outputs = torch.zeros(LAYERS, sum(new), HEADS * DIM, device=DEVICE)
            for layer, *parts, output in zip(stock.layers.values(), query, key, value, outputs, strict=True):
                slots = stock.slots[: sum(new)]
                for cache, rows in zip(layer.kv_cache, parts[1:], strict=True):
                    cache[slots // PAGE, slots % PAGE] = rows
                layer.impl.forward(layer, *parts, layer.kv_cache, (captured if replayed else metadata)["0"], output)
            spec = SimpleNamespace(max_spec_len=BUDGET) if drafts else None
            sampled = stock._sample(logits, spec).sampled_token_ids
            drafted = stock.propose_draft_token_ids(scheduled, sampled, None, None, None, features, spec, None, None)
        assert torch.is_tensor(drafted) and drafted.shape == (len(new), BUDGET)
        assert stock._step.only_trees == (len(drafts) == len(new))
        assert isinstance(stock._step, ReplayedStep) == (replayed and not any(temperatures))
        caches = [layer.kv_cache.clone().cpu() for layer in stock.layers.values()]
        told.append([part.cpu().clone() for part in (positions, outputs, sampled, drafted, *stock.told)] + caches)
        drafts = dict(zip(stock.requests, drafted.tolist()))
        for index, (own, state) in enumerate(zip(sampled.tolist(), stock.requests.values(), strict=True)):
            tokens = [token for token in own if token >= 0]
            given[index].append(len(tokens))
            state.output_token_ids += tokens
            stock.input_batch.num_computed_tokens_cpu[index] = state.num_prompt_tokens + len(state.output_token_ids) - 1
        stock._step = None
    assert max(map(max, given)) > 2, "some tree's rows were accepted"
    return told


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_gpus_road_gives_what_the_references_give_and_reads_nothing_back(vllm, monkeypatch, temperature, full):
    temperatures = [0.0, temperature, temperature]
    wanted = decode(vllm, 6, temperatures)
    monkeypatch.setattr(device, "interpreted", INTERPRETED)
    if DEVICE == "cpu":
        monkeypatch.setattr(vllm.replaying, "recorder", lambda device, captures: partial(Again, watch=NothingAsked))
    found = decode(vllm, 6, temperatures, watched=True, full=full)
    for ours, theirs in zip(found, wanted, strict=True):
        for part, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(part, expected)


def test_near_the_end_of_a_context_trees_are_as_deep_as_there_is_room(vllm):
    torch.manual_seed(0)
    stock = StockRunner(vllm.flash_attention, [20, LONGEST - 4, LONGEST - 2], [0.0] * 3)
    vllm.runner.TreeRunner.adopt(stock, vllm.flash_attention.TreeFlashImpl)
    new = [20, LONGEST - 4, LONGEST - 2]
    scheduled = SimpleNamespace(scheduled_spec_decode_tokens={}, total_num_scheduled_tokens=sum(new))
    stock.positions, stock.slots = torch.zeros(2, 600, dtype=torch.int64, device=DEVICE)
    stock.drafter.model = SimpleNamespace(compute_logits=lambda hidden: hidden)
    stock.block = torch.tensor([[5.0, 0.0, 0.0, 0.0]], device=DEVICE).repeat(3 * SLOTS, 1)
    stock._prepare_inputs(scheduled, new)
    sampled = stock._sample(torch.randn(3, VOCABULARY, device=DEVICE), None).sampled_token_ids
    drafts = stock.propose_draft_token_ids(scheduled, sampled, None, None, None, [torch.zeros(sum(new), HIDDEN, device=DEVICE)], None, None, None)
    assert [len(own) for own in drafts] == [BUDGET, BUDGET, 0]
    assert [int(tree[2].max()) for tree in stock._grown.values()] == [SLOTS, 2]


def test_what_asks_a_tensor_for_its_numbers_is_noticed():
    for ask in (lambda tensor: tensor.tolist(), lambda tensor: tensor.cpu(), lambda tensor: tensor.item(), bool, lambda _: torch.tensor([1])):
        with pytest.raises(AssertionError, match="host wait|reads a number"), NothingAsked():
            ask(torch.ones(1, device=DEVICE))
