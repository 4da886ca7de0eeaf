"""Every Triton kernel compiles for an H200, at the sizes that it is meant for, without a GPU.

The interpreter takes what the compiler refuses: variables that change shape in a loop, sizes that are no powers of two, more
shared memory than there is. Launchers are called as in a round; in place of the launch the kernel is compiled.
"""

import re
import subprocess

import pytest
import torch

triton = pytest.importorskip("triton")

H200 = ("cuda", 90, 32)
SHARED_BYTES = 227 * 1024
TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64", torch.int64: "i64", torch.int32: "i32"}
VOCAB, SLOTS = 151_936, 15


def compiled(kernel, arguments):
    """``kernel`` for ``arguments`` as a launch would specialise it."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, divisible = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[value.dtype]
            divisible[(index,)] = [["tt.divisibility", 16]]
        elif parameter.is_constexpr or value is None or (value == 1 and not parameter.do_not_specialize):
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
        else:
            signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                divisible[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=divisible)
    options = {name: arguments[name] for name in ("num_warps", "num_stages", "launch_pdl") if name in arguments}
    return triton.compile(source, target=GPUTarget(*H200), options=options)


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Names of the kernels that were compiled instead of launched; each is checked for what it takes of the GPU."""
    from triton.runtime.jit import JITFunction

    names = []

    def run(self, *values, grid, warmup, **named):
        kernel = compiled(self, dict(zip(self.arg_names, values)) | named)
        assert kernel.metadata.shared <= SHARED_BYTES
        cubin = tmp_path / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if self.__name__ not in ("_rope_kernel", "write_context_kernel"):  # libdevice's cosine of angles above 100,000 needs memory
            stack = int(re.search(r" STACK:(\d+) ", usage)[1])
            assert stack <= 8, f"{self.__name__} does not fit into registers: {usage}"  # one address may be put aside
        names.append(self.__name__)

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return names


@pytest.fixture
def on_an_h200(monkeypatch):
    """What launchers ask the device for."""
    from kernels.triton_kernels import (
        chains,
        commit,
        context,
        few_rows,
        greedy,
        masks,
        norms,
        outcome,
        rope,
        rotate,
        size,
        tree_attention,
        walk,
    )

    asking = (chains, commit, context, few_rows, greedy, masks, norms, outcome, rope, rotate, size, tree_attention, walk)
    for module in asking:
        monkeypatch.setattr(module, "dependent_launch", lambda device: True)
    monkeypatch.setattr(tree_attention, "programs_at_once", lambda device: 132)
    monkeypatch.setattr(tree_attention, "side_by_side", lambda device: True)


@pytest.mark.parametrize("budget, steps", [(16, 1), (64, 1), (512, 3)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_trees(launched, budget, steps, dtype):
    from kernels.triton_kernels.grow import best_first_tree

    tree = best_first_tree(torch.zeros(1, dtype=torch.int64), torch.empty(1, SLOTS + 1, VOCAB, dtype=dtype)[:, 1:], budget)
    assert all(column.shape == (1, 1 + budget) for column in tree) and len(launched) == 2 + steps


@pytest.mark.parametrize("contexts", [1, 4])
def test_the_size_of_a_tree(launched, on_an_h200, contexts):
    from kernels.triton_kernels.size import pick_size

    numbers = torch.zeros(2, dtype=torch.int64)
    costs = torch.zeros(contexts, dtype=torch.float64), torch.zeros(contexts, 10, dtype=torch.float64)
    pick_size(torch.zeros(2, 128), numbers, torch.zeros(10, dtype=torch.int64), *costs, numbers[:1])
    assert launched == ["pick_size_kernel"]


@pytest.mark.parametrize("rows", [1, 17, 65, 513])
def test_verification(launched, on_an_h200, rows):
    from kernels.triton_kernels import commit, greedy, masks, outcome, stamp, walk

    tokens = torch.zeros(1, rows, dtype=torch.int64)
    longest = min(rows, 1 + SLOTS)
    path, kept, bonus = walk.walk(tokens, tokens, tokens, longest)
    outcome.settle(tokens, tokens, path, kept, bonus, kept, 2048, kept, bonus, torch.zeros(1, 4 + longest, dtype=torch.int64))
    masks.ancestor_bits(tokens)
    logits = torch.empty(1, rows, 40_000 if rows > 100 else VOCAB, dtype=torch.bfloat16)
    greedy.greedy_rows(logits)
    greedy.likeliest_with_logprob(logits)
    commit.keep_rows(torch.empty(2, 2, 1, 8, 2048, 128, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.int64), path)
    stamp.stamp(torch.zeros(8, 4, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), 1)
    assert len(set(launched)) == 7


SHAPES = {"qwen3-8b": (4096, 12288, 32, 8, 128), "smollm2-135m": (576, 1536, 9, 3, 64)}
HEADS = {"qwen3-8b": VOCAB, "smollm2-135m": 49_152}
ROWS = (1, 2, 4, 8, 16, 17, 64, 128)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_and_the_head(launched, on_an_h200, shape, rows):
    from kernels.triton_kernels import few_rows, rope, rotate, tree_attention

    hidden, mlp, heads, kv_heads, head_dim = SHAPES[shape]

    def bf16(*sizes):
        return torch.empty(sizes, dtype=torch.bfloat16)

    tables = rope.rope_tables(torch.zeros(1, rows, dtype=torch.int64), torch.ones(head_dim // 2), torch.bfloat16)
    x, width = bf16(1, rows, hidden), (heads + 2 * kv_heads) * head_dim
    qkv = few_rows.norm_linear(x, bf16(hidden), 1e-6, bf16(width, hidden))
    cache, lengths = bf16(2, 1, kv_heads, 2048, head_dim), torch.zeros(1, dtype=torch.int64)
    norms = (bf16(head_dim), bf16(head_dim)) if shape == "qwen3-8b" else (None, None)
    queries = rotate.rotate_into(qkv, *tables, heads, *norms, 1e-6, *cache, lengths)
    bits = torch.zeros(1, rows, -(-rows // 64), dtype=torch.int64) if rows > 1 else None
    seen = tree_attention.tree_attention(queries, *cache, lengths, bits)
    x, scaled = few_rows.linear_add(seen, bf16(hidden, heads * head_dim), x, bf16(hidden))
    gated = few_rows.norm_swiglu(x, bf16(hidden), 1e-6, bf16(2 * mlp, hidden), scaled)
    x, scaled = few_rows.linear_add(gated, bf16(hidden, mlp), x, bf16(hidden))
    few_rows.norm_linear(x, bf16(hidden), 1e-6, bf16(width, hidden), scaled)
    few_rows.norm_linear(x, bf16(hidden), 1e-6, bf16(HEADS[shape], hidden))
    assert x.shape == (1, rows, hidden) and len(launched) == 9, "one for all layers, the others of each, and the head"


@pytest.mark.parametrize("shape", SHAPES)
def test_four_rows_may_be_cut_like_sixteen_behind_streamed_ones(launched, on_an_h200, shape):
    from kernels.triton_kernels import few_rows, tiles

    hidden, mlp, heads, kv_heads, head_dim = SHAPES[shape]
    for outputs, gated in (((heads + 2 * kv_heads) * head_dim, False), (mlp, True)):
        weight = torch.empty(outputs * (2 if gated else 1), hidden, dtype=torch.bfloat16)
        cut = tiles.tile(16, outputs, hidden, gated, torch.bfloat16)
        few_rows.product(weight[:4], weight, norm=weight[0], eps=1e-6, gated=gated, cut=cut)
    assert launched == ["some_rows_kernel"] * 2


def test_every_measured_tile_is_one_of_theirs():
    from kernels.triton_kernels.tiles import key, measured

    theirs = set()
    for shape, (hidden, mlp, heads, kv_heads, head_dim) in SHAPES.items():
        sizes = [((heads + 2 * kv_heads) * head_dim, hidden), (hidden, heads * head_dim), (hidden, mlp), (HEADS[shape], hidden)]
        of_a_pass = [*((*size, False) for size in sizes), (mlp, hidden, True)]
        theirs |= {key(rows, *size) for rows in ROWS for size in of_a_pass}
    assert measured().keys() <= theirs


@pytest.mark.parametrize("rows, head_dim", [(1, 64), (17, 64), (65, 64), (65, 128)])
def test_a_layer_in_fp32(launched, on_an_h200, rows, head_dim):
    from kernels.triton_kernels import few_rows, rotate, tree_attention

    x, cache = torch.empty(2, rows, 576), torch.empty(2, 2, 3, 512, head_dim)
    qkv = few_rows.norm_linear(x, torch.empty(576), 1e-6, torch.empty(15 * head_dim, 576))
    tables, lengths = torch.empty(2, 1, rows, head_dim), torch.zeros(2, dtype=torch.int64)
    queries = rotate.rotate_into(qkv, tables, tables, 9, None, None, 0.0, *cache, lengths)
    bits = torch.zeros(2, rows, -(-rows // 64), dtype=torch.int64)
    seen = tree_attention.tree_attention(queries, *cache, lengths, bits, 100)
    x, scaled = few_rows.linear_add(seen, torch.empty(576, 9 * head_dim), x, torch.empty(576))
    assert few_rows.norm_swiglu(x, torch.empty(576), 1e-6, torch.empty(3072, 576), scaled).shape == (2, rows, 1536)
    assert few_rows.norm_swiglu(x, torch.empty(576), 1e-6, torch.empty(3072, 576)).shape == (2, rows, 1536)


@pytest.mark.parametrize("rows, dtype", [*((rows, torch.bfloat16) for rows in (1, 8, 17, 64, 128)), (1, torch.float32), (17, torch.float32)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [None, 100])
def test_attention_that_rotates(launched, on_an_h200, window, shape, rows, dtype):
    from kernels.triton_kernels.rotated import rotated_attention

    if window and rows not in (8, 17):
        pytest.skip("one size of each kind")
    _, _, heads, kv_heads, head_dim = SHAPES[shape]
    qkv, tables = torch.empty(1, rows, (heads + 2 * kv_heads) * head_dim, dtype=dtype), torch.empty(1, 1, rows, head_dim, dtype=dtype)
    norms = torch.empty(2, head_dim, dtype=dtype).unbind(0) if shape == "qwen3-8b" else (None, None)
    bits = torch.zeros(1, rows, -(-rows // 64), dtype=torch.int64) if rows > 1 else None
    cache, lengths = torch.empty(2, 1, kv_heads, 2048, head_dim, dtype=dtype), torch.zeros(1, dtype=torch.int64)
    seen = rotated_attention(qkv, tables, tables, heads, *norms, 1e-6, *cache, lengths, bits, window)
    assert seen.shape == (1, rows, heads * head_dim) and launched == ["_attention_kernel"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 16])
def test_a_drafters_context(launched, on_an_h200, shape, rows, dtype):
    from kernels.triton_kernels.context import write_context

    *_, kv_heads, head_dim = SHAPES[shape]
    cache = torch.empty(5, 2, 2, kv_heads, 2048, head_dim, dtype=dtype)
    both, norms = torch.empty(2, rows, 10 * kv_heads * head_dim, dtype=dtype), torch.empty(5, head_dim, dtype=dtype)
    write_context(both, torch.empty(head_dim // 2), norms, 1e-6, cache, torch.zeros(2, dtype=torch.int64))
    assert launched == ["write_context_kernel"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 4])
def test_what_stands_around_an_mtp_heads_layer(launched, on_an_h200, shape, rows, dtype):
    from kernels.triton_kernels import chains, norms

    x, weight = torch.empty(2, rows, SHAPES[shape][0], dtype=dtype), torch.empty(SHAPES[shape][0], dtype=dtype)
    norms.norms_side_by_side(x, x, (weight, weight), (1e-6, 1e-6))
    tokens, bonus = torch.zeros(2, rows, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    chains.following_tokens(tokens, bonus, bonus)
    assert chains.chain_columns(bonus, tokens, tokens.float())[1].shape == (2, 1 + rows) and len(launched) == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 17, 64, 129])
def test_trees_over_pages(launched, on_an_h200, shape, rows, dtype):
    from kernels import PagedRows
    from kernels.triton_kernels import commit, paged, walk

    _, _, heads, kv_heads, head_dim = SHAPES[shape]
    numbers, queries = torch.zeros(2, dtype=torch.int64), torch.empty(2 * rows, heads, head_dim, dtype=dtype)
    bits = torch.zeros(2, rows, -(-rows // 64), dtype=torch.int64)
    for keys, values in (
        torch.empty(2, 9, 16, kv_heads, head_dim, dtype=dtype).unbind(0),
        torch.empty(9, kv_heads, 16, 2 * head_dim, dtype=dtype).transpose(1, 2).split(head_dim, dim=-1),
    ):
        step = PagedRows(numbers, numbers, numbers, torch.zeros(2, 4, dtype=torch.int32), bits, rows)
        paged.paged_attention(queries, keys, values, step, head_dim**-0.5, torch.empty_like(queries))
        path = torch.zeros(2, min(rows, 16), dtype=torch.int64)
        commit.keep_slots(keys, numbers, numbers, numbers, path)
    walk.emitted(bits[..., 0], path, numbers, numbers, 16)
    assert len(set(launched)) >= 3


def test_a_mark_outside_the_ring_is_refused():
    from kernels.triton_kernels.stamp import stamp

    with pytest.raises(ValueError, match="mark 4"):
        stamp(torch.zeros(8, 4, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), 4)
