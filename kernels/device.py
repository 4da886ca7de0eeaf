"""Which tensors the Triton kernels take."""

from __future__ import annotations

from torch import Tensor

# Set in tests, where Triton's interpreter stands in for a GPU: the road of a GPU, on tensors of the CPU.
interpreted = False


def on_gpu(tensor: Tensor) -> bool:
    """Whether ``tensor`` takes a GPU's road: Triton kernels, fixed shapes, nothing read back to the host."""
    return tensor.is_cuda or interpreted
