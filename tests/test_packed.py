"""What a CPU runs in place of plain layers: the same numbers."""

import copy

import pytest
import torch
from tiny_decoding import causal_logits, proposers, run, tiny_config, tiny_target
from torch import nn

from kernels import likeliest, pack, packed
from kernels.huge_pages import _joined, collapse
from kernels.packed import PackedLinear, PairedNorm, packs

needs_bf16 = pytest.mark.skipif(not packs(torch.empty(0, dtype=torch.bfloat16)), reason="an x86 CPU that multiplies bf16")


def frozen(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    return module.to(dtype).requires_grad_(False)


@needs_bf16
@pytest.mark.parametrize("sizes", [(576, 960), (1536, 576), (32, 48), (7, 5)])
@pytest.mark.parametrize("rows", [1, 2, 17, 33, 130])
@torch.inference_mode()
def test_a_packed_product_is_the_plain_one_bit_for_bit(sizes, rows):
    torch.manual_seed(0)
    plain = frozen(nn.Linear(*sizes, bias=False), torch.bfloat16)
    product = packed(plain)
    assert type(product) is PackedLinear and (product.in_features, product.out_features) == sizes
    x = torch.randn(rows, sizes[0]).bfloat16()
    assert torch.equal(product(x), plain(x))
    assert torch.equal(product(x[0]), plain(x[0]))
    # Of a view torch takes another road for the plain layer, which adds up in another order.
    parts = torch.randn(2, rows + 1, sizes[0]).bfloat16()[:, 1:]
    assert torch.equal(product(parts), product(parts.contiguous()))
    torch.testing.assert_close(product(parts), plain(parts), rtol=2**-7, atol=1e-3)


@torch.inference_mode()
def test_what_learns_or_is_no_plain_layer_stays():
    learning = nn.Linear(8, 8, bias=False).bfloat16()
    others = [frozen(module, torch.bfloat16) for module in (nn.Linear(8, 8), nn.Embedding(8, 8), nn.LayerNorm(8))]
    single = [frozen(module, torch.float32) for module in (nn.Linear(8, 8, bias=False), nn.RMSNorm(8))]
    for module in (learning, nn.RMSNorm(8).bfloat16(), *others, *single, None):
        assert packed(module) is module


@needs_bf16
@pytest.mark.parametrize("width", [8, 64, 576])
@torch.inference_mode()
def test_a_paired_norm_is_the_norm_to_half_a_bit(width):
    """Against fp64, with outliers as residual streams have them, near zero where eps counts, and for rows of any layout."""
    torch.manual_seed(0)
    plain = frozen(nn.RMSNorm(width, 1e-5), torch.bfloat16)
    plain.weight.uniform_(-2, 2)
    norm = packed(plain)
    assert type(norm) is PairedNorm and norm.weight is plain.weight
    x = torch.randn(3, width, 5, dtype=torch.float64).transpose(1, 2)
    x[0, :, 0] = 3000
    x[1] *= 1e-3
    x[2, 0] = 0
    x = x.bfloat16()
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5) * plain.weight.double()
    largest = exact.abs().amax(-1, keepdim=True)
    assert ((norm(x).double() - exact).abs() <= 2**-8 * exact.abs() + 1e-7 * largest).all()


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_in_fp32_packing_changes_no_bit(family):
    plain = tiny_target(tiny_config(family))
    model = copy.deepcopy(plain)
    pack(model)
    prompt = [5, 17, 3, 40, 11]
    assert torch.equal(causal_logits(model, prompt), causal_logits(plain, prompt))


@needs_bf16
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_packed_model_is_close_in_bf16_and_holds_no_plain_matrix(family, tmp_path):
    plain = tiny_target(tiny_config(family)).bfloat16()
    model = copy.deepcopy(plain)
    pack(model)
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    assert max(p.dim() for name, p in model.named_parameters() if not name.startswith("embed")) == 1
    prompt = [5, 17, 3, 40, 11]
    found, wanted = causal_logits(model, prompt), causal_logits(plain, prompt)
    assert (found - wanted).norm() <= 0.02 * wanted.norm()
    for name, proposer in proposers(model, tmp_path).items():
        assert len(run(model, proposer, prompt, 24).tokens) == 24, name


@pytest.mark.parametrize("vocabulary", [48, 50257, 49152, 151936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_likeliest_is_the_first_of_the_largest(vocabulary, dtype):
    torch.manual_seed(0)
    logits = torch.randn(2, 3, vocabulary).to(dtype)
    logits[0, 0] = 1  # all equal
    logits[0, 1, [vocabulary - 1, vocabulary // 2, vocabulary // 2 - 1]] = 100
    logits[1, 2] = -torch.inf
    found = likeliest(logits)
    assert found[0, :2].tolist() == [0, vocabulary // 2 - 1] and found[1, 2] == 0
    first = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
    assert torch.equal(found, first)


def test_huge_pages_leave_contents_and_ask_only_for_what_lies_together():
    assert _joined([(100, 50), (10, 20), (30, 60), (1 << 20, 5)]) == [(10, 150), (1 << 20, (1 << 20) + 5)]
    whole = torch.arange(1 << 20)
    collapse([(whole.data_ptr(), whole.nbytes)])
    assert torch.equal(whole, torch.arange(1 << 20))
    collapse([(1 << 21, 1 << 22)])  # nothing lies there, and nothing happens
