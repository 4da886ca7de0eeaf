"""Drafter checkpoints: the published format is read liberally, written strictly, and what does not fit is refused."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_decoding import drafter_config, head_config, shaken, tiny_config, tiny_target

import strategies.ddtree
import strategies.mtp
from harness.engines.torch.engine import target_view
from harness.errors import UserError
from strategies.base import TargetView
from strategies.dflash.checkpoint import load_drafter, new_drafter, save_drafter
from strategies.dflash.config import DrafterConfig, check_fits, read_config, spread_taps
from strategies.dflash.drafter import DFlashDrafter
from strategies.mtp.checkpoint import load_head, new_head, save_head

# The published Qwen3-4B drafter's configuration.
QWEN3_4B = {
    "architectures": ["DFlashDraftModel"], "attention_bias": False, "block_size": 16, "dtype": "bfloat16", "head_dim": 128,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}, "hidden_act": "silu",
    "hidden_size": 2560, "intermediate_size": 9728, "layer_types": ["full_attention"] * 5, "max_position_embeddings": 40960,
    "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 5, "num_key_value_heads": 8,
    "num_target_layers": 36, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "tie_word_embeddings": True, "vocab_size": 151936,
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return tiny_target(tiny_config())


@pytest.fixture(scope="module")
def view(model):
    return target_view(model)


@pytest.fixture
def drafter(model, tmp_path):
    """A folder with a sound drafter."""
    save_drafter(shaken(new_drafter(drafter_config(model))), tmp_path / "drafter")
    return tmp_path / "drafter"


@pytest.fixture
def head(model, tmp_path):
    """A folder with a sound MTP head."""
    save_head(shaken(new_head(head_config(model))), tmp_path / "head")
    return tmp_path / "head"


def written(tmp_path, data) -> DrafterConfig:
    (tmp_path / "config.json").write_text(json.dumps(data))
    return read_config(tmp_path / "config.json")


def refused(call, *words) -> None:
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and all(str(word) in message for word in words), message


def change(folder, **changes) -> None:
    """Replace keys of the folder's config.json; a dict goes into the dict that is there."""
    data = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        data[key] = data[key] | value if isinstance(value, dict) else value
    (folder / "config.json").write_text(json.dumps(data))


def change_weights(folder, edit) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_qwen3_4b_has_its_58_tensors(tmp_path):
    config = written(tmp_path, QWEN3_4B)
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in DFlashDrafter(config).state_dict().items()}
    wanted = {"fc.weight": (2560, 5 * 2560), "hidden_norm.weight": (2560,), "norm.weight": (2560,)}
    for layer in range(5):
        wanted |= {
            f"layers.{layer}.{name}.weight": shape
            for name, shape in {
                "self_attn.q_proj": (4096, 2560), "self_attn.k_proj": (1024, 2560), "self_attn.v_proj": (1024, 2560),
                "self_attn.o_proj": (2560, 4096), "self_attn.q_norm": (128,), "self_attn.k_norm": (128,),
                "mlp.gate_proj": (9728, 2560), "mlp.up_proj": (9728, 2560), "mlp.down_proj": (2560, 9728),
                "input_layernorm": (2560,), "post_attention_layernorm": (2560,),
            }.items()
        }  # fmt: skip
    assert shapes == wanted and len(shapes) == 58


def test_qwen3_4b_fits_its_target_and_has_its_numbers(tmp_path):
    config = written(tmp_path, QWEN3_4B)
    nothing = torch.nn.Identity()
    check_fits(config, TargetView(2560, 151936, 36, 40960, nothing, nothing, torch.bfloat16, torch.device("meta")), "it")
    assert (config.block_size, config.mask_token_id, config.rope_theta, config.num_target_layers) == (16, 151669, 1e6, 36)
    assert config.target_layer_ids == spread_taps(36, 5) == (1, 9, 17, 25, 33)


@pytest.mark.parametrize("layers, taps, wanted", [(36, 5, (1, 9, 17, 25, 33)), (30, 5, (1, 8, 14, 20, 27)), (28, 1, (14,))])
def test_taps_are_spread_as_the_paper_spreads_them(layers, taps, wanted):
    assert spread_taps(layers, taps) == wanted


def test_what_is_written_is_the_published_layout(tmp_path):
    config = written(tmp_path, QWEN3_4B)
    from strategies.dflash.config import write_config

    write_config(config, tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert {key: again[key] for key in QWEN3_4B} == QWEN3_4B
    assert read_config(tmp_path / "again.json") == config


def test_a_drafter_survives_writing_and_reading(model, view, tmp_path):
    drafter = shaken(new_drafter(drafter_config(model)))
    save_drafter(drafter, tmp_path)
    again = load_drafter(str(tmp_path), view)
    assert again.config == replace(drafter.config, layer_types=("full_attention",) * 2)
    assert again.state_dict().keys() == drafter.state_dict().keys()
    for name, tensor in drafter.state_dict().items():  # written in bf16, read in the target's fp32
        assert torch.equal(again.state_dict()[name], tensor.bfloat16().float())
    assert not any(parameter.requires_grad for parameter in again.parameters())


def test_a_head_survives_writing_and_reading(model, view, tmp_path):
    head = shaken(new_head(head_config(model)))
    save_head(head, tmp_path)
    again = load_head(str(tmp_path), view)
    assert again.config == head.config
    for name, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.bfloat16().float())


# Reading liberally


def test_fields_at_top_level(tmp_path):
    data = {key: value for key, value in QWEN3_4B.items() if key != "dflash_config"}
    data |= {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}
    assert written(tmp_path, data) == written(tmp_path, QWEN3_4B)


def test_block_size_inside_dflash_config(tmp_path):
    data = {key: value for key, value in QWEN3_4B.items() if key != "block_size"}
    data["dflash_config"] = {**QWEN3_4B["dflash_config"], "block_size": 16}
    assert written(tmp_path, data) == written(tmp_path, QWEN3_4B)


def test_rope_parameters(tmp_path):
    data = {key: value for key, value in QWEN3_4B.items() if key not in ("rope_theta", "rope_scaling")}
    data["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000000}
    assert written(tmp_path, data) == written(tmp_path, QWEN3_4B)


def test_taps_that_are_not_listed_are_spread(tmp_path):
    data = {**QWEN3_4B, "dflash_config": {"mask_token_id": 151669}}
    assert written(tmp_path, data) == written(tmp_path, QWEN3_4B)


def test_a_mask_id_of_zero_is_an_id(tmp_path):
    assert written(tmp_path, {**QWEN3_4B, "dflash_config": {"mask_token_id": 0}}).mask_token_id == 0


def test_the_speculators_layout_whose_layer_ids_count_hidden_states(tmp_path):
    """There id i is hidden_states[i], the output of layer i - 1: one more than in the published layout."""
    outside = ("block_size", "dflash_config", "architectures", "num_target_layers")
    data = {
        "architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash", "block_size": 16,
        "mask_token_id": 151669, "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34], "draft_vocab_size": 151936,
        "transformer_layer_config": {key: value for key, value in QWEN3_4B.items() if key not in outside},
    }  # fmt: skip
    assert written(tmp_path, data) == replace(written(tmp_path, QWEN3_4B), num_target_layers=-1)


def test_weights_with_a_prefix_or_with_the_targets_own_embedding(model, view, drafter):
    plain = load_drafter(str(drafter), view).state_dict()

    def edit(tensors):
        for name in list(tensors):
            tensors["model." + name] = tensors.pop(name)
        tensors["model.embed_tokens.weight"] = torch.zeros(48, 32)
        tensors["lm_head.weight"] = torch.zeros(48, 32)

    change_weights(drafter, edit)
    before = model.embed.weight.clone()
    again = load_drafter(str(drafter), view).state_dict()
    assert again.keys() == plain.keys() and all(torch.equal(again[name], plain[name]) for name in plain)
    assert torch.equal(model.embed.weight, before), "the target's own is never overwritten"


def test_sliding_layers_are_known(tmp_path):
    data = {**QWEN3_4B, "layer_types": ["sliding_attention"] * 4 + ["full_attention"], "sliding_window": 2048}
    config = written(tmp_path, data)
    assert [config.sliding(layer) for layer in range(5)] == [True] * 4 + [False] and config.sliding_window == 2048


# Refusals


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hidden_size": 64}, ["hidden size is 64", "32", "train one"]),
        ({"vocab_size": 50}, ["vocabulary is 50", "48", "train one"]),
        ({"num_target_layers": 4}, ["number of target layers is 4", "3", "train one"]),
        ({"dflash_config": {"target_layer_ids": [0, 3]}}, ["tapped layer id is 3", "0 to 2"]),
        ({"dflash_config": {"target_layer_ids": [-1, 2]}}, ["tapped layer id is -1", "0 to 2"]),
        ({"dflash_config": {"mask_token_id": 48}}, ["mask token id is 48", "0 to 47"]),
        ({"dflash_config": {"mask_token_id": -1}}, ["mask token id is -1", "0 to 47"]),
        ({"dflash_config": {"mask_token_id": "<mask>"}}, ["mask token id", "'<mask>'", "0 to 47"]),
        ({"dflash_config": {"mask_token_id": None}}, ["lacks 'mask_token_id'"]),
        ({"block_size": 1}, ["block size 1", "one slot"]),
        ({"draft_vocab_size": 20}, ["reduced vocabulary (20 of 48)", "full vocabulary"]),
        ({"rope_scaling": {"rope_type": "yarn"}} | {"rope_theta": 1e4}, ["yarn", "not supported"]),
        ({"intermediate_size": 64}, ["gate_proj", "(48, 32)", "(64, 32)"]),
        ({"dflash_config": {"target_layer_ids": [0, 1, 2]}}, ["fc.weight", "(32, 64)", "(32, 96)"]),
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, ["11 tensors missing or unknown", "layers.2"]),
        ({"hidden_size": "32"}, ["hidden_size", "'32'", "whole number"]),
        ({"head_dim": 7}, ["head_dim", "7"]),
        ({"num_key_value_heads": 3}, ["4", "3", "heads"]),
        ({"dflash_config": {"target_layer_ids": 3}}, ["target_layer_ids", "3"]),
        ({"layer_types": ["full_attention"]}, ["layer_types", "1", "2"]),
        ({"layer_types": ["sliding_attention"] * 2}, ["sliding_window", "None"]),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(view, drafter, changes, words):
    data = json.loads((drafter / "config.json").read_text())
    data["rope_scaling"] = {} if isinstance(changes.get("rope_scaling"), dict) else None
    (drafter / "config.json").write_text(json.dumps(data))
    change(drafter, **changes)
    refused(lambda: load_drafter(str(drafter), view), *words)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '"words"'])
def test_an_altered_config_is_refused(view, drafter, head, text):
    for folder, load in [(drafter, load_drafter), (head, load_head)]:
        (folder / "config.json").write_text(text)
        refused(lambda: load(str(folder), view), folder / "config.json", "give the folder")  # noqa: B023


def rename(tensors):
    tensors["norm.waits"] = tensors.pop("norm.weight")


WEIGHTS = [
    (lambda tensors: tensors.pop("norm.weight"), ["1 tensors missing or unknown", "norm.weight"]),
    (lambda tensors: tensors.update(extra=torch.zeros(1)), ["1 tensors missing or unknown", "extra"]),
    (rename, ["2 tensors missing or unknown"]),
    (lambda tensors: tensors.update({"norm.weight": torch.zeros(31)}), ["norm.weight", "(31,)", "(32,)"]),
]


@pytest.mark.parametrize("edit, words", WEIGHTS, ids=["missing", "unknown", "renamed", "shape"])
def test_weights_that_are_not_the_configs_are_refused(view, drafter, head, edit, words):
    for folder, load in [(drafter, load_drafter), (head, load_head)]:
        change_weights(folder, edit)
        refused(lambda: load(str(folder), view), folder / "model.safetensors", *words)  # noqa: B023


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_truncated_weights_are_refused(view, drafter, head, keep):
    for folder, load in [(drafter, load_drafter), (head, load_head)]:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:keep])
        refused(lambda: load(str(folder), view), weights, "again")  # noqa: B023


def test_absent_weights_and_unknown_names_are_refused(view, drafter, head):
    for folder, load in [(drafter, load_drafter), (head, load_head)]:
        (folder / "model.safetensors").unlink()
        refused(lambda: load(str(folder), view), folder / "model.safetensors")  # noqa: B023
        refused(lambda: load("nobodys-drafter", view), "nobodys-drafter", "shipped are", "folder")  # noqa: B023


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hidden_size": 64}, ["hidden size is 64", "32", "train one"]),
        ({"vocab_size": 50}, ["vocabulary is 50", "48", "train one"]),
        ({"num_target_layers": 4}, ["number of target layers is 4", "3", "train one"]),
        ({"intermediate_size": 64}, ["(48, 32)", "(64, 32)"]),
        ({"architectures": ["DFlashDraftModel"]}, ["DFlashDraftModel", "MTPHead"]),
        ({"num_attention_heads": "four"}, ["num_attention_heads", "four"]),
        ({"num_key_value_heads": 3}, ["4", "3", "heads"]),
    ],
)
def test_a_head_that_does_not_fit_is_refused(view, head, changes, words):
    change(head, **changes)
    refused(lambda: load_head(str(head), view), *words)


def test_a_head_config_that_lacks_a_field_is_refused(view, head):
    data = json.loads((head / "config.json").read_text())
    del data["rope_theta"]
    (head / "config.json").write_text(json.dumps(data))
    refused(lambda: load_head(str(head), view), "rope_theta", "again")


@pytest.mark.parametrize("budget", [0, -1, 1025, 1.5, "many"])
def test_a_budget_that_cannot_be_is_refused(view, drafter, budget):
    refused(lambda: strategies.ddtree.build(view, "ddtree", str(drafter), budget), f"strategy.budget={budget}", "1 to 1024")


@pytest.mark.parametrize("k", [0, -1, 17, 1.5])
def test_a_chain_length_that_cannot_be_is_refused(view, head, k):
    refused(lambda: strategies.mtp.build(view, "mtp", str(head), k), f"strategy.k={k}", "1 to 16")


@pytest.mark.parametrize("name", ["dflash", "mtp"])
def test_altered_shipped_weights_are_refused(name, tmp_path):
    import importlib
    import shutil

    from strategies.checkpoint import _check_recorded

    shipped = importlib.import_module(f"strategies.{name}.checkpoint").SHIPPED / "smollm2-135m"
    _check_recorded(shipped / "model.safetensors")
    copy = shutil.copytree(shipped, tmp_path / name)
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-5000] ^= 0x40
    (copy / "model.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match="altered: sha256 .* fetch or train the checkpoint again") as caught:
        _check_recorded(copy / "model.safetensors")
    assert "\n" not in str(caught.value)
