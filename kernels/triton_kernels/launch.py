"""What the kernels of a forward pass share: how each begins beside the one before it, and counters.

Dependent launch (sm_90): a kernel's programs may start while the one before still runs. Each program first lets the next
kernel start likewise, may touch what no kernel of the chain writes (weights; what was committed, and how much, before the
embedding's kernel, which begins every pass and is none of these), and then waits until the kernel before it has ended and its
writes can be seen. As all kernels wait, the one before that has ended too. So the time between two kernels, and the time until
the first weights arrive, overlap with the end of the kernel before. In a captured graph the edges between them are of the
same kind.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

COUNTERS = 8192


@cache
def dependent_launch(device: torch.device) -> bool:
    """Whether kernels may start beside the one before them."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def programs_at_once(device: torch.device) -> int:
    """Programs that fill the device once: one a multiprocessor."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def side_by_side(device: torch.device) -> bool:
    """Whether programs of a kernel can wait for one another: not in the interpreter, which runs one after another."""
    return device.type == "cuda"


@cache
def counters(device: torch.device) -> Tensor:
    """int32 zeros ``[COUNTERS]``; a kernel that counts in them leaves zeros. Kernels of two streams must not share them."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("the first pass on a device cannot be captured: make one before")
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@triton.jit
def let_next_start(DEPENDENT: tl.constexpr):
    """The next kernel's programs may start as soon as all of this one have, and room is left."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_last(DEPENDENT: tl.constexpr):
    """What follows sees all that kernels before this one wrote; nothing of theirs may be read or written above."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()


@triton.jit
def arrives_last(counter_ptr, expected):
    """Whether this is the last of ``expected`` programs to come here; it then sees what the others stored before, and the
    counter is zero again."""
    tl.debug_barrier()  # all threads have stored; the atomic then releases and acquires for the whole program
    last = tl.atomic_add(counter_ptr, 1, sem="acq_rel") == expected - 1
    if last:
        tl.store(counter_ptr, 0)
    return last


@triton.jit
def meet(counters_ptr, expected):
    """Waits until all ``expected`` programs have come here; each then sees what the others stored before. All of them must fit
    on the device at once: a kernel that starts beside this one does so when all have begun. Each must ``leave``."""
    tl.debug_barrier()  # all threads have stored
    come = tl.atomic_add(counters_ptr, 1, sem="acq_rel") + 1
    while come < expected:
        come = tl.atomic_add(counters_ptr, 0, sem="acquire")


@triton.jit
def leave(counters_ptr, expected):
    """After ``meet``: with the last to leave its two counters are zero again."""
    if tl.atomic_add(counters_ptr + 1, 1, sem="relaxed") == expected - 1:
        tl.store(counters_ptr, 0)
        tl.store(counters_ptr + 1, 0)


@triton.jit
def prefetch(places):
    """Ask for the cache lines at ``places``."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places.to(tl.int64, bitcast=True)], dtype=tl.int32, is_pure=False, pack=1
    )
