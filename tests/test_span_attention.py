"""The Triton kernel, in Triton's interpreter on the CPU, against the plain-torch reference."""

import os
import subprocess
import sys

import pytest
import torch

from kernels.span_attention import Span, span_attention_reference

PROGRAM = """
import torch
from kernels.span_attention import Span, _triton, span_attention_reference
torch.manual_seed(0)
for heads, kv_heads, head_dim in ((9, 3, 64), (4, 4, 64), (8, 1, 128)):
    q = torch.randn(3, heads, 1, head_dim)
    k, v = torch.randn(2, 3, kv_heads, 200, head_dim)
    span = Span(torch.tensor([0, 70, 63]), torch.tensor([200, 71, 130]))
    ours, wanted = _triton(q, k, v, span), span_attention_reference(q, k, v, span)
    assert (ours - wanted).norm() / wanted.norm() < 1e-5, (heads, (ours - wanted).abs().max())
"""


def test_kernel_equals_reference_in_the_interpreter():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_reference_sees_the_span_alone():
    torch.manual_seed(1)
    q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 10, 8), torch.randn(2, 2, 10, 8)
    span = Span(torch.tensor([2, 0]), torch.tensor([6, 1]))
    whole = span_attention_reference(q, k, v, span)
    k[0, :, 6:], v[0, :, :2] = 100.0, 100.0
    k[:, :, 8:] = v[:, :, 8:] = torch.nan  # behind every span: never written
    assert torch.equal(whole, span_attention_reference(q, k, v, span))
    assert torch.allclose(whole[1].view(2, 2, 8), v[1, :, 0][:, None].expand(2, 2, 8))
