"""What the vLLM engine and the DDTree plugin are made of, as far as it runs without vLLM."""

import json

import pytest
import torch
from tiny_models import save_models, write_gguf
from vllm_tiny import write_drafter, write_model

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
from strategies.ddtree.vllm_plugin.versions import Seam

SETTINGS = Settings("cpu", "float32", 2, 256, 8, 1024, 0.5, 0.5, True, False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder / "target")
    write_drafter(folder / "drafter", folder / "target")
    return folder


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
    from harness.measuring import decode_cell
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
