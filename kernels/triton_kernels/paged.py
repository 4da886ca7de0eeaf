"""Attention of the rows of trees over caches in pages: one launch a layer."""

from torch import Tensor

from kernels.paged import PagedRows
from kernels.triton_kernels.tree_attention import launch


def paged_attention(queries: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, scale: float, out: Tensor) -> None:
    """``kernels.paged.paged_attention``, ``rows.mask`` being the words of ``ancestor_bits``; keys of finite numbers."""
    if keys.stride() != values.stride() or keys.stride(3) != 1 or queries.stride(2) != 1 or not out.is_contiguous():
        raise ValueError(
            f"strides {queries.stride()} of queries, {keys.stride()} of keys, {values.stride()} of values, {out.stride()} of the "
            "output: keys' and values' must be the same, numbers of a row contiguous, and the output contiguous"
        )
    sizes = (len(rows.starts), rows.widest, queries.shape[1], keys.shape[2])
    launch(
        queries, keys, values, out, sizes, (0, queries.stride(1), queries.stride(0)), (0, keys.stride(2)),
        rows.lengths, rows.mask, None, scale,
        pages=(rows.starts, rows.counts, rows.table, rows.table.stride(0), keys.stride(0), keys.stride(1)), page=keys.shape[1],
    )  # fmt: skip
