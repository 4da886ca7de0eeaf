"""Linear layers and norms in the form in which a CPU runs a decoding step fastest: the same numbers.

A step of a few rows costs what reading the weights costs, and what starting kernels costs. Packed weights lie in the order
in which oneDNN's product reads them, which spares it a copy of them in every call. A norm becomes one kernel of torch's.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor, nn

from kernels.device import on_gpu
from kernels.huge_pages import collapse
from kernels.native.layers import NativeLinear, takes


class PackedLinear(nn.Module):
    """``nn.Linear`` without bias, for inference: the same product, its weight in oneDNN's order alone."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return _product(x, self.packed, None, "none", (), "")

    @property
    def place(self) -> tuple[int, int]:
        """Address and size [byte] of the weight."""
        return torch.ops.mkldnn.data_ptr(self.packed), torch.ops.mkldnn._nbytes(self.packed)


class PairedNorm(nn.Module):
    """``nn.RMSNorm`` of x as the layer norm of x and -x side by side, whose mean is 0 and whose variance is the mean of x².

    torch has one kernel for the latter on a CPU, and ten for the former. It finds that mean to about 1e-8 of the largest x:
    next to nothing in bf16.
    """

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps
        self._pair = torch.stack([norm.weight.detach(), torch.zeros_like(norm.weight)])
        self._signs = norm.weight.new_tensor([[1], [-1]])

    def forward(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x.unsqueeze(-2) * self._signs, self._pair.shape, self._pair, None, self.eps).select(-2, 0)


_product = torch.ops.mkldnn._linear_pointwise.default
_PACKED = (PackedLinear, NativeLinear)


def packed(module: nn.Module | None) -> nn.Module | None:
    """A linear layer or a norm as above where nothing learns and ``packs`` says so; anything else as it is."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.requires_grad or not packs(weight):
        return module
    if type(module) is nn.Linear and module.bias is None:
        return NativeLinear(weight) if takes(weight) else PackedLinear(weight)
    return PairedNorm(module) if type(module) is nn.RMSNorm else module


def packs(weight: Tensor) -> bool:
    """bf16 on an x86 CPU that multiplies it. In fp32 one row is faster with a plain weight, and a paired norm loses digits."""
    if weight.device.type != "cpu" or weight.dtype is not torch.bfloat16 or on_gpu(weight):
        return False
    return platform.machine() in ("x86_64", "AMD64") and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack(model: nn.Module) -> None:
    """``packed`` for all that a model is made of, in place. Weights that nothing else holds are freed one by one."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            setattr(parent, name, packed(child))
    places = [module.place for module in model.modules() if isinstance(module, _PACKED)]
    places += [(parameter.data_ptr(), parameter.nbytes) for parameter in model.parameters() if parameter.device.type == "cpu"]
    collapse(places)


def products_of(model: nn.Module) -> str | None:
    """What multiplies the packed layers of ``model``: oneDNN, or the C kernels' instructions; ``None``: nothing is packed."""
    found = {module.products if isinstance(module, NativeLinear) else "oneDNN" for module in model.modules() if isinstance(module, _PACKED)}
    return " and ".join(sorted(found)) or None
