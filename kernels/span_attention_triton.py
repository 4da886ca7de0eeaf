"""The Triton kernel of ``span_attention``: a program for each request and key head, online softmax over blocks of its span."""

import triton
import triton.language as tl


@triton.jit
def span_attention_kernel(
    q_ptr, k_ptr, v_ptr, first_ptr, end_ptr, out_ptr, stride_batch, stride_head, scale,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Queries and output are contiguous; caches share strides and hold rows of ``HEAD`` contiguous numbers."""
    request, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kv_heads = tl.num_programs(1)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, HEAD)
    offsets = ((request * kv_heads + kv_head) * GROUP + rows[:, None]) * HEAD + dims[None, :]
    q = tl.load(q_ptr + offsets, mask=rows[:, None] < GROUP, other=0.0)
    first = tl.load(first_ptr + request).to(tl.int32)
    end = tl.load(end_ptr + request).to(tl.int32)
    base = request * stride_batch + kv_head * stride_head
    largest = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, HEAD), tl.float32)
    begin = (first // BLOCK) * BLOCK
    while begin < end:  # not range: the interpreter cannot make Python numbers of loaded bounds under numpy 2.4
        columns = begin + tl.arange(0, BLOCK)
        seen = (columns >= first) & (columns < end)
        places = base + columns[:, None] * HEAD + dims[None, :]
        k = tl.load(k_ptr + places, mask=seen[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, -1e30)
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp(largest - new_largest)
        weights = tl.where(seen[None, :], tl.exp(scores - new_largest[:, None]), 0.0)
        v = tl.load(v_ptr + places, mask=seen[:, None], other=0.0)
        out = out * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        largest = new_largest
        begin += BLOCK
    tl.store(out_ptr + offsets, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=rows[:, None] < GROUP)
