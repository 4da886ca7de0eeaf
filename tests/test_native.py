"""The C kernels on a CPU: what they compute, that a row never depends on its company, and where they are used."""

from pathlib import Path

import pytest
import torch
from torch import nn
from vllm_runs import configuration

from harness.cache_folder import cache_folder
from harness.engines.torch import TorchEngine
from harness.errors import UserError
from harness.records import Request, Sampling
from kernels import LayerWeights, Rows, causal_mask, over_cache, over_caches, packed, row_mask
from kernels.native import layers as native
from kernels.native import library as compiling
from kernels.packed import packs
from kernels.tree import ranked_candidates

PLAIN = ("-O3", "-march=x86-64-v3", "-fopenmp", "-shared", "-fPIC", "-std=gnu11")  # a machine without tiles
TREE = torch.tensor([[-1, 0, 0, 1, 1, 3, 2, 5, 0, 4, 7]])


@pytest.fixture(autouse=True, params=["this machine's", "plain"])
def kernels(request, monkeypatch):
    """Both products, where they can be compiled; none of them afterwards."""
    if not packs(torch.empty(0, dtype=torch.bfloat16)):
        pytest.skip("an x86 CPU that multiplies bf16")
    if request.param == "plain":
        monkeypatch.setattr(compiling, "FLAGS", PLAIN)
    compiling.library.cache_clear()
    if reason := native.use(cache_folder() / "kernels"):
        pytest.skip(reason)
    yield compiling.products(native._library)
    native.use(None)
    compiling.library.cache_clear()


def test_the_flags_make_another_library(kernels, request):
    if "plain" in request.node.callspec.params.values():
        assert kernels == "AVX2"
    else:
        assert (kernels == "AMX") == ("amx_bf16" in Path("/proc/cpuinfo").read_text())


@pytest.mark.parametrize("outputs, inputs", [(960, 576), (576, 1536), (16, 32), (48, 64)])
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 33, 100, 130])
def test_products(outputs, inputs, rows):
    torch.manual_seed(0)
    weight, x = torch.randn(outputs, inputs).bfloat16(), torch.randn(rows, inputs).bfloat16()
    linear, norm = native.NativeLinear(weight), nn.RMSNorm(inputs, 1e-5).bfloat16()
    norm.weight.data.uniform_(-2, 2)
    expected = x.float() @ weight.float().T
    torch.testing.assert_close(linear(x).float(), expected, rtol=2**-8, atol=1e-3 * inputs**0.5)
    normed = nn.functional.rms_norm(x.float(), (inputs,), norm.weight.float(), 1e-5).bfloat16()
    torch.testing.assert_close(linear(x, norm), linear(normed), rtol=2**-6, atol=0.1)
    for row in (0, rows - 1):
        assert torch.equal(linear(x[row]), linear(x)[row]) and torch.equal(linear(x[row], norm), linear(x, norm)[row])


def test_sums_are_rounded_as_torch_rounds_them():
    """Sums of two numbers, many of them halfway between two of bf16."""
    torch.manual_seed(0)
    one = torch.randn(4096).bfloat16()
    other = (one.float() * 2.0**-9 * torch.randint(-3, 4, (4096,))).bfloat16()
    x, weight = torch.zeros(4096, 32).bfloat16(), torch.zeros(16, 32).bfloat16()
    x[:, 0], x[:, 2] = one, other
    weight[:, 0] = weight[:, 2] = 1
    assert torch.equal(native.NativeLinear(weight)(x)[:, 7], (one.float() + other.float()).bfloat16())


def test_numbers_that_are_none_stay_with_their_row():
    linear = native.NativeLinear(torch.randn(32, 64).bfloat16())
    x = torch.randn(3, 64).bfloat16()
    alone = linear(x[0])
    x[1, 5] = torch.nan
    assert linear(x)[1].isnan().all() and torch.equal(linear(x)[0], alone) and not linear(x)[2].isnan().any()


def random_layer(heads=9, kv_heads=3, dim=64, hidden=96, inner=160, qk_norm=False, gain=1.0) -> LayerWeights:
    torch.manual_seed(1)

    def linear(inputs, outputs):
        made = nn.Linear(inputs, outputs, bias=False).bfloat16().requires_grad_(False)
        return made

    def norm(width, gain=1.0):
        made = nn.RMSNorm(width, 1e-5).bfloat16().requires_grad_(False)
        made.weight.uniform_(0.5, 1.5).mul_(gain)
        return made

    norms = (norm(dim), norm(dim)) if qk_norm else (None, None)
    qkv, out = linear(hidden, (heads + 2 * kv_heads) * dim), linear(heads * dim, hidden)
    return LayerWeights(heads, norm(hidden), qkv, *norms, out, norm(hidden, gain), linear(hidden, 2 * inner), linear(inner, hidden))


def state(layer: LayerWeights, lengths: list[int], kv_heads: int, dim: int, rows: int):
    torch.manual_seed(2)
    hidden = layer.out.out_features
    keys, values = torch.randn(2, len(lengths), kv_heads, max(lengths) + rows + 3, dim).bfloat16()
    x = torch.randn(len(lengths), rows, hidden).bfloat16()
    angles = torch.rand(len(lengths), 1, rows, dim // 2).repeat(1, 1, 1, 2) * 6
    return x, (angles.cos().bfloat16(), angles.sin().bfloat16()), keys, values, torch.tensor(lengths)


@pytest.mark.parametrize(
    "heads, kv_heads, dim, qk_norm, lengths, rows",
    [(9, 3, 64, False, [40], 1), (9, 3, 64, False, [5, 70, 0], 17), (4, 1, 32, True, [33], 9), (2, 2, 128, True, [100, 16], 40)],
)
@pytest.mark.parametrize("sight", ["tree", "chain", "all"])
@torch.inference_mode()
def test_a_layer_is_the_reference(heads, kv_heads, dim, qk_norm, lengths, rows, sight):
    layer = random_layer(heads, kv_heads, dim, qk_norm=qk_norm)
    assert type(layer.qkv) is native.NativeLinear
    native.use(None)
    plain = random_layer(heads, kv_heads, dim, qk_norm=qk_norm)
    assert type(plain.qkv) is not native.NativeLinear
    x, rope, keys, values, lengths = state(layer, lengths, kv_heads, dim, rows)
    parents = torch.stack([(torch.arange(rows) - 1) // (2 + b) for b in range(len(x))])
    masks = {"tree": row_mask(parents), "chain": causal_mask(len(x), rows, "cpu"), "all": None}
    found, expected = [], []
    for whose, told in ((layer, found), (plain, expected)):
        caches = keys.clone(), values.clone()
        told += [over_cache(whose, x, rope, *caches, Rows(lengths, masks[sight])), *caches]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2**-5, atol=0.05)


@torch.inference_mode()
def test_a_part_of_a_mask_and_angles_for_all_requests_are_read_as_what_they_hold():
    layer = random_layer()
    x, rope, keys, values, lengths = state(layer, [40, 12], 3, 64, 3)
    part, rope = causal_mask(2, 5, "cpu")[:, :3, :3], tuple(table[:1] for table in rope)
    dense = part.contiguous(), tuple(table.repeat(2, 1, 1, 1) for table in rope)
    apart = torch.stack([lengths, lengths], dim=1)[:, 0]
    found, expected = (
        over_cache(layer, x, angles, keys.clone(), values.clone(), Rows(where, mask))
        for angles, where, mask in ((rope, apart, part), (dense[1], lengths, dense[0]))
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("position", [0, 1, 7, 12])
@torch.inference_mode()
def test_one_key_far_above_all_others(position):
    layer = random_layer()
    native.use(None)
    plain = random_layer()
    x, rope, keys, values, lengths = state(layer, [13], 3, 64, 2)
    keys[:, :, :13] = 0
    keys[:, :, position] = torch.randn(3, 64).bfloat16() * 300
    ours, theirs = (over_cache(each, x, rope, keys.clone(), values.clone(), Rows(lengths)) for each in (layer, plain))
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=2**-5, atol=0.05)


@pytest.mark.parametrize("position", [5, 20, 40])
@torch.inference_mode()
def test_a_key_that_is_no_number_shows(position):
    layer = random_layer()
    x, rope, keys, values, lengths = state(layer, [40], 3, 64, 2)
    for filled in range(42, keys.shape[2]):
        keys[:, :, filled] = values[:, :, filled] = torch.nan
    assert over_cache(layer, x, rope, keys.clone(), values.clone(), Rows(lengths)).isfinite().all(), "what lies behind the rows is not read"
    if position < 40:
        keys[:, :, position] = torch.nan
        assert not over_cache(layer, x, rope, keys, values, Rows(lengths)).isfinite().any()


@torch.inference_mode()
def test_what_does_not_fit_is_refused():
    layer = random_layer()
    with pytest.raises(ValueError, match="rows of 64 numbers of torch.bfloat16: the layer takes 96 of torch.bfloat16"):
        layer.qkv(torch.zeros(3, 64).bfloat16())
    with pytest.raises(ValueError, match="numbers of torch.float32"):
        layer.qkv(torch.zeros(3, 96))
    x, rope, keys, values, lengths = state(layer, [40], 3, 64, 2)
    with pytest.raises(ValueError, match="over a cache of torch.float32"):
        over_cache(layer, x, rope, keys.float(), values.float(), Rows(lengths))
    with pytest.raises(ValueError, match="46 positions do not fit a cache for 45"):
        over_cache(layer, x, rope, keys, values, Rows(lengths + 4))


def test_a_library_without_the_kernels_is_a_reason(monkeypatch, tmp_path):
    empty = tmp_path / "sources"
    empty.mkdir()
    (empty / "nothing.c").write_text("int nothing;")
    monkeypatch.setattr(compiling, "SOURCES", empty)
    compiling.library.cache_clear()
    assert "undefined symbol" in native.use(tmp_path)


@pytest.mark.parametrize("gain", [30.0, 90.0, 2000.0])
@torch.inference_mode()
def test_a_gate_far_from_zero_is_shut_or_open(gain):
    """silu of what no exponential of fp32 can hold: 0 on one side, the gate itself on the other."""
    sizes = {"heads": 2, "kv_heads": 2, "dim": 32, "hidden": 32, "inner": 32, "gain": gain}
    layer = random_layer(**sizes)
    native.use(None)
    plain = random_layer(**sizes)
    x, rope, keys, values, lengths = state(layer, [7], 2, 32, 3)
    ours, theirs = (over_cache(each, x, rope, keys.clone(), values.clone(), Rows(lengths)) for each in (layer, plain))
    assert ours.isfinite().all()
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=2**-5, atol=2**-5 * float(theirs.float().std()))


def random_tree(rows: int) -> torch.Tensor:
    torch.manual_seed(4)
    return torch.tensor([[-1, *(int(torch.randint(max(0, row - 9), row, ())) for row in range(1, rows))]])


@pytest.mark.parametrize(
    "heads, kv_heads, dim, lengths, tree",
    [
        (9, 3, 64, (0, 1, 15, 16, 31, 100), TREE),
        (4, 4, 32, (60,), random_tree(64)),  # one piece of work holds 32 rows
        (16, 2, 128, (25, 32), random_tree(20)),
        (20, 1, 32, (7,), random_tree(9)),  # and here one row
    ],
)
@torch.inference_mode()
def test_a_row_of_a_tree_is_the_row_decoded_alone_bit_for_bit(heads, kv_heads, dim, lengths, tree):
    layer = random_layer(heads, kv_heads, dim)
    rows = tree.shape[1]
    for length in lengths:
        x, rope, keys, values, committed = state(layer, [length], kv_heads, dim, rows)
        whole = keys.clone(), values.clone()
        verified = over_cache(layer, x, rope, *whole, Rows(committed, row_mask(tree)))
        for row in range(rows):
            path = [row]
            while tree[0, path[0]] >= 0:
                path.insert(0, int(tree[0, path[0]]))
            alone = keys.clone(), values.clone()
            for at, of in enumerate(path):
                tables = tuple(table[:, :, of : of + 1] for table in rope)
                out = over_cache(layer, x[:, of : of + 1], tables, *alone, Rows(committed + at))
            assert torch.equal(out[0, 0], verified[0, row]), (length, row)


@torch.inference_mode()
def test_rows_are_deaf_to_what_they_do_not_see():
    layer = random_layer()
    x, rope, keys, values, lengths = state(layer, [40], 3, 64, 11)
    seen = Rows(lengths, row_mask(TREE))
    expected = over_cache(layer, x, rope, keys.clone(), values.clone(), seen)
    x[0, 8] = torch.nan  # a leaf under the root
    keys[:, :, 51:], values[:, :, 51:] = torch.nan, torch.nan
    found = over_cache(layer, x, rope, keys, values, seen)
    others = [row for row in range(11) if row != 8]
    assert found[0, 8].isnan().all() and torch.equal(found[0, others], expected[0, others])


@torch.inference_mode()
def test_layers_after_one_another_are_one_call():
    layers = [random_layer(gain=gain) for gain in (1.0, 0.5, 2.0)]
    x, rope, keys, values, lengths = state(layers[0], [12, 3], 3, 64, 5)
    keys, values = (each.expand(3, *each.shape).clone() for each in (keys, values))
    rows = Rows(lengths, causal_mask(2, 5, "cpu"))
    apart, one_by_one = (keys.clone(), values.clone()), []
    for layer, own_keys, own_values in zip(layers, *apart, strict=True):
        one_by_one.append(over_cache(layer, one_by_one[-1] if one_by_one else x, rope, own_keys, own_values, rows))
    together = list(over_caches(layers, x, rope, keys, values, [rows] * 3))
    for ours, theirs in zip((*together, keys, values), (*one_by_one, *apart), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("vocab, width", [(49152, 15), (49152, 1), (1000, 63), (77, 77), (5, 2), (128, 128), (4099, 512)])
@pytest.mark.parametrize("spread", [0.0, 0.3, 8.0])
def test_the_likeliest_tokens(vocab, width, spread):
    torch.manual_seed(vocab)
    logits = (torch.randn(3, vocab) * spread).bfloat16()  # many are equal
    logits[1, ::2] = -torch.inf
    logprobs, ids = native.candidates(logits, width)
    assert torch.equal(ids, logits.sort(dim=-1, descending=True, stable=True).indices[:, :width])
    expected = logits.double().log_softmax(dim=-1).gather(1, ids)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-6, atol=1e-5)
    ranked = ranked_candidates(logits[None], width)
    assert torch.equal(ranked[1][0], ids) and torch.equal(ranked[0][0], logprobs)


@torch.inference_mode()
def test_what_the_kernels_do_not_take_goes_the_other_road():
    layer = random_layer()
    x, rope, keys, values, lengths = state(layer, [20], 3, 64, 4)
    seen = Rows(lengths, causal_mask(1, 4, "cpu"), window=3)
    assert native.decoder_layers([layer], x, rope, keys[None], values[None], [seen]) is None
    assert over_cache(layer, x, rope, keys, values, seen).shape == x.shape
    two = [Rows(lengths), Rows(lengths - 1)]
    assert native.decoder_layers([layer] * 2, x, rope, keys.expand(2, *keys.shape), values.expand(2, *values.shape), two) is None
    assert type(packed(nn.Linear(32, 24, bias=False).bfloat16().requires_grad_(False))) is not native.NativeLinear
    odd = random_layer(heads=2, kv_heads=1, dim=48)
    x, rope, keys, values, lengths = state(odd, [20], 1, 48, 4)
    assert native.decoder_layers([odd], x, rope, keys[None], values[None], [Rows(lengths)]) is None


MODEL = {"name": "smollm2-135m", "path": None, "source": "harness.models.smollm2.fetch", "dtype": "bfloat16"}


def test_smollm2_in_bf16_says_the_same_in_every_strategy(kernels):
    names = ("baseline", "mtp", "dflash", "ddtree")
    engine = TorchEngine(MODEL, {name: configuration(name) for name in names}, device="cpu")
    assert (engine.settings()["cpu_kernels"], engine.settings()["attention"]) == (kernels, "kernels.native.decoder_layers")
    for question in ("What is the capital of France, and why?", "Write a function that adds two numbers."):
        prompt = tuple(engine.render([{"role": "user", "content": question}]))
        request = Request(prompt, engine.end_tokens, Sampling(max_new_tokens=40))
        told = {name: engine.decode(name, request) for name in names}
        assert len({decoded.tokens for decoded in told.values()}) == 1
        assert len(told["ddtree"].rounds) < len(told["baseline"].rounds)
    for name in names[1:]:  # drafts, too, are the same in any company
        for decoded in engine.decode_batch(name, [request] * 3):
            assert decoded.tokens == told[name].tokens and len(decoded.rounds) == len(told[name].rounds), name


def test_the_flag(monkeypatch):
    for dtype, wanted, expected in (("float32", None, None), ("bfloat16", False, "oneDNN")):
        engine = TorchEngine(MODEL | {"dtype": dtype}, {}, device="cpu", cpu_kernels=wanted)
        assert (engine.settings()["cpu_kernels"], engine.settings()["attention"]) == (expected, "scaled_dot_product_attention")
    with pytest.raises(UserError, match="engine.cpu_kernels=true: they take bfloat16, not float32"):
        TorchEngine(MODEL | {"dtype": "float32"}, {}, device="cpu", cpu_kernels=True)
    monkeypatch.setattr(compiling, "COMPILERS", ("no-compiler-here",))
    monkeypatch.delenv("CC", raising=False)
    compiling.library.cache_clear()
    with pytest.raises(UserError, match="engine.cpu_kernels=true: no C compiler"):
        TorchEngine(MODEL, {}, device="cpu", cpu_kernels=True)
    assert TorchEngine(MODEL, {}, device="cpu").settings()["cpu_kernels"] == "oneDNN"


def test_a_compiler_that_fails_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "FLAGS", (*PLAIN, "-no-such-flag-there-is"))
    compiling.library.cache_clear()
    assert "fails" in native.use(tmp_path) and not list(tmp_path.glob("*.so"))
    assert native._library is None
