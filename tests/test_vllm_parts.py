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
from kernels import ancestor_mask, attention, attention_with_lse, merge_attention, visible_rows
from strategies.ddtree.vllm_plugin.attention import StepAttention
from strategies.ddtree.vllm_plugin.choosing import Uniforms
from strategies.ddtree.vllm_plugin.plan import Grown, Step, Verified
from strategies.ddtree.vllm_plugin.rectangles import new_rows, padded
from strategies.ddtree.vllm_plugin.refusals import needs_chain, refuse, refuse_layers
from strategies.ddtree.vllm_plugin.versions import Seam

SETTINGS = Settings("cpu", "float32", 2, 256, 8, 1024, 0.5, 0.5, True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("tiny"))


# attention in two parts

@pytest.mark.parametrize("group", [1, 3])
def test_attention_over_context_and_new_rows_merges_to_attention_over_all(group):
    torch.manual_seed(0)
    batch, kv_heads, rows, context, dim = 2, 2, 6, 11, 8
    queries = torch.randn(batch, group * kv_heads, rows, dim)
    keys, values = torch.randn(2, batch, kv_heads, context + rows, dim)
    mask = ancestor_mask(torch.tensor([[-1, 0, 0, 1, 1, 2], [-1, 0, 1, 2, 3, 4]]))
    first = attention_with_lse(queries, keys[:, :, :context], values[:, :, :context], torch.ones(batch, rows, context).bool(), dim**-0.5)
    second = attention_with_lse(queries, keys[:, :, context:], values[:, :, context:], mask, dim**-0.5)
    merged = merge_attention(*first, *second).transpose(1, 2).flatten(2)
    torch.testing.assert_close(merged, attention(queries, keys, values, visible_rows(mask, context)))


def test_a_row_that_sees_nothing_weighs_nothing():
    queries, keys, values = torch.randn(3, 1, 1, 2, 4)
    nothing = torch.zeros(1, 2, 2, dtype=torch.bool)
    out, lse = attention_with_lse(queries, keys, values, nothing, 0.5)
    assert not out.any() and (lse == -torch.inf).all()
    other = torch.randn(1, 1, 2, 4)
    assert torch.equal(merge_attention(other, torch.zeros(1, 1, 2), out, lse), other)


def test_padded_rectangles_of_uneven_trees_give_each_tree_its_own_attention():
    """What FlashAttention's backend does with the new rows, on the CPU."""
    torch.manual_seed(0)
    trees = [Grown([-1, 5, 6, 7], [-1, 0, 0, 1], [0, 1, 1, 2]), Grown([-1, 5, 6], [-1, 0, 0], [0, 1, 1])]
    step = Step([Verified(0, 2, 9, trees[0]), Verified(2, 8, 4, trees[1])], 11)
    made = padded(StepAttention(step, torch.arange(11), torch.zeros(3, 2, dtype=torch.int32)))
    query, key, value = torch.randn(3, 11, 2, 4)
    out, lse = new_rows(made, query[made.rows], key[made.rows], value[made.rows], 0.5)
    assert made.rows.tolist() == [2, 3, 4, 5, 8, 9, 10] and made.starts.tolist() == [0, 4, 7]
    at = 0
    for verified in step.requests:
        rows = slice(verified.start, verified.start + verified.rows)
        parts = (part[rows].transpose(0, 1)[None] for part in (query, key, value))
        own, own_lse = attention_with_lse(*parts, verified.mask(torch.device("cpu")), 0.5)
        torch.testing.assert_close(out[at : at + verified.rows], own[0].transpose(0, 1))
        torch.testing.assert_close(lse[at : at + verified.rows], own_lse[0].T)
        at += verified.rows


# a step's plan

def test_a_tree_that_is_cut_is_still_a_tree():
    tree = Grown([-1, 4, 5, 6, 7], [-1, 0, 0, 1, 3], [0, 1, 1, 2, 3])
    assert tree.branches and tree.shape == (3, 2)
    assert tree.cut(2) == Grown([-1, 4], [-1, 0], [0, 1]) and not tree.cut(2).branches
    assert Grown.chain([8, 9]) == Grown([-1, 8, 9], [-1, 0, 1], [0, 1, 2])
    assert Grown.chain([]).shape == (0, 0) and Grown.chain([8, 9]).shape == (2, 1)


def test_only_branching_trees_need_their_own_attention():
    tree, chain = Grown([-1, 4, 5], [-1, 0, 0], [0, 1, 1]), Grown.chain([4, 5])
    mixed = Step([Verified(0, 0, 9, chain), Verified(1, 3, 9, tree)], 6)
    assert [verified.index for verified in mixed.trees] == [1] and not mixed.only_trees
    assert Step([Verified(0, 0, 9, tree)], 3).only_trees
    assert Step([Verified(0, 0, 9, tree)], 3).trees[0].mask(torch.device("cpu")).tolist() == [[[1, 0, 0], [1, 1, 0], [1, 0, 1]]]


def test_uniform_numbers_are_those_of_the_torch_engine():
    whole = torch.rand(1, 600, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    numbers = Uniforms(7)
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
