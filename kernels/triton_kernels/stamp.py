"""Times of a round taken on the GPU itself, inside the captured graph.

The timer is an instruction of the GPU: Triton's interpreter does not have it, and there is no reference.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer


def stamp(ring: Tensor, counter: Tensor, mark: int) -> None:
    """Write the GPU's clock, in ns, to ``ring[counter % rounds, mark]``; ``ring`` int64 ``[rounds, marks]``, ``counter`` int64 ``[1]``."""
    rounds, marks = ring.shape
    if not 0 <= mark < marks:
        raise ValueError(f"mark {mark}: the ring has marks 0 to {marks - 1}")
    stamp_kernel[(1,)](ring, counter, rounds, marks, mark, num_warps=1)


@triton.jit(do_not_specialize=["rounds", "marks", "mark"])
def stamp_kernel(ring_ptr, counter_ptr, rounds, marks, mark):
    now = globaltimer()
    tl.store(ring_ptr + (tl.load(counter_ptr) % rounds) * marks + mark, now)
