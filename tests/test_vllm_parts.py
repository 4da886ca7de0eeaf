"""What the vLLM engine and the DDTree plugin are made of, as far as it runs without vLLM."""

import json
from types import SimpleNamespace

import pytest
import torch
from tiny_models import save_models, write_gguf
from vllm_tiny import write_pair

import strategies.ddtree
import strategies.dflash
from harness.engines.vllm.arguments import Settings, engine_arguments, environment
from harness.errors import UserError
from harness.models.export import hugging_face_folder
from harness.models.weights import load_checkpoint
from kernels import SampledChoices
from strategies.ddtree.vllm_plugin.attention import FixedRows
from strategies.ddtree.vllm_plugin.choosing import StepChoices, Uniforms, sampler
from strategies.ddtree.vllm_plugin.plan import Planned, Step, shapes
from strategies.ddtree.vllm_plugin.refusals import needs_chain, refuse, refuse_layers
from strategies.ddtree.vllm_plugin.versions import Seam

SETTINGS = Settings("cpu", "float32", 2, 256, 8, 1024, 0.5, 0.5, True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("tiny"))


# a step's plan

TREE = torch.tensor([[9, 4, 5, 6, 7], [-1, 0, 0, 1, 3], [0, 1, 1, 2, 3]])
ROOT = torch.tensor([[0], [-1], [0]])


def planned(rows: int, is_tree: bool = True, start: int = 0, first: int = 0, base: int = 0) -> Planned:
    return Planned("x", start, first, base, rows, is_tree)


def step_of(requests: list[Planned], trees: list, tokens: int) -> Step:
    """With positions as vLLM gives them out, and what an earlier step left behind them."""
    positions = torch.full((64,), -1)
    for request in requests:
        positions[request.start : request.start + request.rows] = torch.arange(request.base, request.base + request.rows)
    return Step(requests, trees, tokens, positions)


def test_a_step_of_whole_trees_is_the_trees():
    step = step_of([planned(5, base=30), planned(5, start=5, first=5, base=8)], [TREE, TREE + 1], 10)
    assert torch.equal(torch.stack([step.tokens, step.parents, step.depths], dim=1), torch.stack([TREE, TREE + 1]))
    assert step.has_trees and step.only_trees and step.widest == 5
    assert step.at.tolist() == step.logits_at.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert step.linear.tolist() == [[30, 31, 32, 33, 34], [8, 9, 10, 11, 12]]
    assert step.starts.tolist() == [0, 5] and step.bases.tolist() == [30, 8] and step.counts.tolist() == [5, 5]


def test_what_a_captured_pass_reads_lies_in_the_same_places_at_every_step():
    fixed, table = FixedRows(3, 5, torch.device("cpu")), torch.zeros(3, 7, dtype=torch.int32)
    captured = fixed.rows(table)
    places = [part.data_ptr() for part in (captured.starts, captured.counts, captured.lengths, captured.mask)]
    assert captured.counts.tolist() == [0, 0, 0] and captured.widest == 5
    two = step_of([planned(5, base=30), planned(5, start=5, first=5, base=8)], [TREE, TREE], 10)
    one = step_of([planned(5, base=34)], [TREE], 5)
    for step, batch, counts, lengths in ((two, 3, [5, 5, 0], [30, 8]), (one, 3, [5, 0, 0], [34]), (two, 2, [5, 5], [30, 8])):
        assert fixed.takes(step)
        fixed.fill(step)
        rows = fixed.rows(table[:batch])
        assert [part.data_ptr() for part in (rows.starts, rows.counts, rows.lengths, rows.mask)] == places
        for found in (rows, captured):
            assert found.counts.tolist()[:batch] == counts and found.lengths.tolist()[: len(lengths)] == lengths
            assert torch.equal(found.mask[: len(step.requests)], step.mask)
    short = step_of([planned(4, base=34)], [TREE], 4)
    mixed = step_of([planned(5, base=34), planned(1, False, start=5)], [TREE, ROOT], 6)
    chunk = step_of([planned(1, False, start=4)], [ROOT], 5)
    assert not any(fixed.takes(step) for step in (short, mixed, chunk))
    fixed.fill(None)
    assert captured.counts.tolist() == [0, 0, 0], "nothing attends while a pass is captured"


def test_a_step_of_trees_that_are_cut_and_of_single_rows():
    """What vLLM left off at the end is no node; behind its own rows a request repeats its last, which stands for itself alone."""
    requests = [planned(1, False, start=6, first=0, base=6), planned(2, start=7, first=1, base=20), planned(4, start=9, first=3, base=30)]
    step = step_of(requests, [ROOT, TREE, TREE], 13)
    assert step.has_trees and not step.only_trees and step.counts.tolist() == [0, 2, 4]
    assert step.starts.tolist() == [6, 7, 9] and step.bases.tolist() == [6, 20, 30]
    assert step.at.tolist() == [[6, 6, 6, 6], [7, 8, 8, 8], [9, 10, 11, 12]]
    assert step.logits_at.tolist() == [[0, 0, 0, 0], [1, 2, 2, 2], [3, 4, 5, 6]]
    assert step.parents.tolist() == [[-1, -1, -1, -1], [-1, 0, -1, -1], [-1, 0, 0, 1]]
    assert step.depths.tolist() == [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 2]]
    assert step.mask[1].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    alone = step_of([planned(1, False)], [ROOT], 1)
    assert not alone.has_trees and not alone.only_trees


def test_shapes_of_trees():
    assert shapes([TREE[2], TREE[2, :2], torch.zeros(1, dtype=torch.int64)]) == [(3, 2), (1, 1), (0, 0)]
    assert shapes([]) == []


# choices

def test_a_step_chooses_for_every_request_in_its_own_way():
    torch.manual_seed(0)
    logits, numbers = torch.randn(7, 5), Uniforms(3, torch.device("cpu"))
    requests = [planned(3, first=1), planned(2, first=5)]
    step = step_of(requests, [TREE, TREE], 7)
    params = SimpleNamespace(temperature=0.7, top_k=-1, top_p=0.9)
    choices = StepChoices(logits, step.logits_at, {1: sampler(logits, requests[1], params, numbers, 4)})
    own = SampledChoices(logits[None, 5:7], numbers.between(4, 6), 0.7, 0, 0.9)
    whole = StepChoices(logits, step.logits_at, {1: own}).at_all(step.depths)
    for row in range(3):
        assert choices(0, row, row) == whole[0, row] == logits[1 + row].argmax()
    for row in range(2):
        assert choices(1, row, row) == whole[1, row] == own(0, row, row)


def test_uniform_numbers_are_those_of_the_torch_engine():
    whole = torch.rand(1, 600, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    numbers = Uniforms(7, torch.device("cpu"))
    assert torch.equal(numbers.between(250, 260), whole[:, 250:260])
    assert torch.equal(numbers.between(590, 600), whole[:, 590:])


class Moved:
    def method(self, one, three): ...


FAULTS = [("method", r"Moved.method takes \(one, three\) where \(one, two\) is known"), ("other", "Moved.other is gone")]


@pytest.mark.parametrize("name, fault", FAULTS)
def test_a_seam_that_moved_is_named(name, fault):
    import re

    assert re.fullmatch(fault, Seam(f"{__name__}:Moved", name, (("one", "two"),), "why").fault())
    assert Seam(f"{__name__}:Moved", "method", (("a",), ("one", "three")), "why").fault() is None
    assert "no_such_module cannot be imported" in Seam("no_such_module:X", "y", ((),), "why").fault()


# refusals

def covered(**changes):
    """A configuration of vLLM that the plugin covers, as far as it looks; ``changes`` as ``group__field=value``."""
    groups = dict(
        model_config=dict.fromkeys(("use_mla", "is_hybrid", "uses_mrope", "is_encoder_decoder", "sliding_window", "layer_types")),
        cache_config=dict(enable_prefix_caching=False, cache_dtype="auto"),
        parallel_config=dict(world_size_across_dp=1),
        speculative_config=dict(method="dflash", num_speculative_tokens=16, draft_sample_method="greedy"),
        scheduler_config=dict(async_scheduling=False),
    )
    whole = dict(lora_config=None, kv_transfer_config=None, additional_config={"ddtree": {"budget": 16}})
    for key, value in changes.items():
        group, _, field = key.partition("__")
        if field:
            groups[group][field] = value
        else:
            whole[group] = value
    model = SimpleNamespace(**groups.pop("model_config"))
    model.get_sliding_window = lambda: model.sliding_window
    model.hf_text_config = SimpleNamespace(layer_types=model.layer_types)
    return SimpleNamespace(model_config=model, **{name: SimpleNamespace(**fields) for name, fields in groups.items()}, **whole)


UNCOVERED = [
    (dict(speculative_config__method="eagle"), "drafts with DFlash, not with method 'eagle'"),
    (dict(additional_config={}), "the node budget is a whole number from 1 to speculative_config.num_speculative_tokens, 16"),
    (dict(additional_config={"ddtree": {"budget": 17}}), "the node budget"),
    (dict(additional_config={"ddtree": {"budget": 9, "full_graphs": True}}), "true only with a node budget of speculative_config.num"),
    (dict(additional_config={"ddtree": {"budget": 16, "full_graphs": "some"}}), '"full_graphs": some}}: true or false'),
    (dict(cache_config__enable_prefix_caching=True), "prefix caching; set enable_prefix_caching to false"),
    (dict(scheduler_config__async_scheduling=True), "async scheduling; set async_scheduling to false"),
    (dict(cache_config__cache_dtype="fp8_e4m3"), "the cache type fp8_e4m3"),
    (dict(model_config__use_mla=True), "latent attention"),
    (dict(model_config__is_hybrid=True), "recurrent layers"),
    (dict(model_config__sliding_window=4096), "sliding-window attention"),
    (dict(model_config__layer_types=["full_attention", "sliding_attention"]), "sliding-window attention"),
    (dict(model_config__uses_mrope=True), "M-RoPE"),
    (dict(model_config__is_encoder_decoder=True), "an encoder"),
    (dict(parallel_config__world_size_across_dp=2), "several devices"),
    (dict(lora_config=object()), "LoRA"),
    (dict(kv_transfer_config=object()), "a remote cache"),
    (dict(speculative_config__draft_sample_method="probabilistic"), "probabilistic drafts"),
]


@pytest.mark.parametrize("changes, words", UNCOVERED, ids=[next(iter(changes)) for changes, _ in UNCOVERED])
def test_what_is_not_covered_is_refused_by_name(changes, words):
    refuse(covered())
    with pytest.raises(UserError) as caught:
        refuse(covered(**changes))
    assert words in str(caught.value) and "\n" not in str(caught.value)


class OurAttention:
    BACKEND = "FLASH_ATTN"
    alibi_slopes = sinks = kv_sharing_target_layer_name = None
    logits_soft_cap = 0


@pytest.mark.parametrize("field, value, words", [
    ("alibi_slopes", torch.zeros(2), "ALiBi"), ("logits_soft_cap", 30.0, "soft-capped logits"), ("sinks", torch.ones(2), "attention sinks"),
    ("kv_sharing_target_layer_name", "layers.0", "shared caches"),
])  # fmt: skip
def test_attention_that_is_not_covered_is_refused_by_name(field, value, words):
    layer = SimpleNamespace(impl=OurAttention())
    refuse_layers({"layers.1": layer}, OurAttention)
    setattr(layer.impl, field, value)
    with pytest.raises(UserError, match=words):
        refuse_layers({"layers.1": layer}, OurAttention)
    with pytest.raises(UserError, match="runs on SimpleNamespace; choose the attention backend FLASH_ATTN"):
        refuse_layers({"layers.1": SimpleNamespace(impl=SimpleNamespace())}, OurAttention)


ORDINARY = dict(
    logprobs=None, prompt_logprobs=None, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, min_p=0.0, min_tokens=0,
    logit_bias=None, bad_words=[], allowed_token_ids=None, structured_outputs=None, extra_args=None,
)  # fmt: skip


def test_requests_that_only_a_chain_serves_are_told_by_what_they_ask_for():
    assert needs_chain(SimpleNamespace(**ORDINARY)) is None
    special = dict(logprobs=0, prompt_logprobs=1, repetition_penalty=1.1, presence_penalty=-0.5, min_p=0.1, bad_words=["x"])
    special["structured_outputs"] = {"json": 1}
    for name, value in special.items():
        assert needs_chain(SimpleNamespace(**ORDINARY | {name: value})) == name


# arguments

def test_every_strategy_gets_the_same_settings_but_for_what_it_adds(tiny):
    plain = engine_arguments(tiny / "target", SETTINGS, {"name": "baseline", "_target_": "strategies.baseline.build"})
    tree = engine_arguments(
        tiny / "target", SETTINGS,
        {"name": "ddtree", "_target_": "strategies.ddtree.build", "drafter": str(tiny / "drafter"), "budget": 9},
    )  # fmt: skip
    assert tree.items() >= plain.items() and plain["enable_prefix_caching"] is False
    assert tree["speculative_config"] == {"method": "dflash", "model": str(tiny / "drafter"), "num_speculative_tokens": 9}
    assert tree["additional_config"] == {"ddtree": {"budget": 9}}


@pytest.mark.parametrize("device, budget, asked, full", [("cuda", 9, True, True), ("cuda", 9, False, False), ("cpu", 9, True, False), ("cuda", 1, True, False)])
def test_passes_over_whole_trees_are_captured_on_a_gpu(tiny, device, budget, asked, full):
    arguments = strategies.ddtree.vllm_arguments(tiny / "target", device, "ddtree", str(tiny / "drafter"), budget, vllm_full_graphs=asked)
    assert arguments["additional_config"]["ddtree"].get("full_graphs", False) is full


def test_a_small_budget_still_leaves_room_for_a_block(tiny):
    arguments = strategies.ddtree.vllm_arguments(tiny / "target", "cpu", "ddtree", str(tiny / "drafter"), 1)
    assert arguments["speculative_config"]["num_speculative_tokens"] == 3


@pytest.mark.parametrize("budget", [0, 129, "many"])
def test_a_budget_that_vllm_cannot_take_is_refused(tiny, budget):
    with pytest.raises(UserError, match=f"strategy.budget={budget} .* from 1 to 128"):
        strategies.ddtree.vllm_arguments(tiny / "target", "cpu", "ddtree", str(tiny / "drafter"), budget)


def test_a_drafter_of_another_target_is_refused(tiny):
    with pytest.raises(UserError, match="does not fit the target: hidden size is 576"):
        strategies.dflash.vllm_arguments(tiny / "target", "cpu", "dflash", "smollm2-135m")


def test_a_strategy_without_an_adapter_is_told_what_to_add(tiny):
    with pytest.raises(UserError, match="strategy=mine: has no adapter for vLLM; add a function vllm_arguments to strategies.base"):
        engine_arguments(tiny / "target", SETTINGS, {"name": "mine", "_target_": "strategies.base.DraftTree"})


def test_a_process_reaches_no_network():
    assert environment(SETTINGS)["HF_HUB_OFFLINE"] == "1"


# a GGUF file as a folder

@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_exported_folder_holds_the_very_same_model(family, tmp_path, monkeypatch):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    file = write_gguf(tmp_path / "model.gguf", save_models(tmp_path / "saved"), family)
    folder = hugging_face_folder(file, torch.float32)
    ours, theirs = load_checkpoint(folder), load_checkpoint(file)
    assert ours.config == theirs.config
    assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in theirs.tensors)
    talk = [{"role": "user", "content": "the cat sat"}]
    assert ours.tokenizer.render(talk) == theirs.tokenizer.render(talk)
    assert ours.tokenizer.decode([0, 5, 260]) == theirs.tokenizer.decode([0, 5, 260])


def test_a_folder_is_made_once_and_again_when_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    file = write_gguf(tmp_path / "model.gguf", save_models(tmp_path / "saved"), "llama")
    folder = hugging_face_folder(file, torch.bfloat16)
    weights = folder / "model.safetensors"
    made = weights.stat().st_mtime_ns
    assert hugging_face_folder(file, torch.bfloat16) == folder and weights.stat().st_mtime_ns == made
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    hugging_face_folder(file, torch.bfloat16)
    assert weights.read_bytes()[-1] == damaged[-1] ^ 1
    assert hugging_face_folder(folder, torch.float32) == folder, "a folder is used as it is"



# memory

def test_an_engine_whose_memory_is_elsewhere_tells_its_own_peaks():
    from harness.decoding import decode_cell
    from harness.records import Decoded, Request, Sampling
    from harness.store import Cell, Key

    class Elsewhere:
        def decode(self, strategy, request):
            return Decoded((5,), "length", 0.1, 0.1)

        def text(self, tokens):
            return "w5"

        def peaks(self):
            return 123, 456

    cell = decode_cell(Elsewhere(), Cell(Key("p", 0, "s", 0), "c", 0), lambda: Request((1,), (), Sampling()))
    assert (cell.failure, cell.host_peak_bytes, cell.device_peak_bytes) == (None, 123, 456)
