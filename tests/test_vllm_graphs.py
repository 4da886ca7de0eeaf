"""What vLLM makes of the plugin's word on captured graphs: its own resolution of the mode, and its own dispatcher."""

from types import SimpleNamespace

import pytest
from vllm_runs import needs_vllm

pytestmark = needs_vllm
ROWS, REQUESTS = 32, 8


def dispatcher(full: bool):
    """vLLM's, for trees of ``ROWS`` rows."""
    from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    from strategies.ddtree.vllm_plugin.flash_attention import TreeFlashBuilder

    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    compilation = CompilationConfig(
        mode=CompilationMode.VLLM_COMPILE, cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE, cudagraph_capture_sizes=sizes,
        max_cudagraph_capture_size=512, splitting_ops=list(CompilationConfig._attention_ops),
    )  # fmt: skip
    config = SimpleNamespace(
        additional_config={"ddtree": {"budget": ROWS - 1, "full_graphs": full}}, compilation_config=compilation, lora_config=None,
        num_speculative_tokens=ROWS - 1,  # where 0.32 looks
        speculative_config=SimpleNamespace(num_speculative_tokens=ROWS - 1), scheduler_config=SimpleNamespace(max_num_seqs=REQUESTS),
    )  # fmt: skip
    support = TreeFlashBuilder.get_cudagraph_support(config, None)
    mode = compilation.resolve_cudagraph_mode_and_sizes(support, "TreeFlashBackend", ROWS)
    found = CudagraphDispatcher(config)
    found.initialize_cudagraph_keys(mode, ROWS)
    return found


@pytest.mark.parametrize("full", [False, True])
def test_steps_of_whole_trees_replay_whole_passes_where_asked_and_no_others_do(full):
    from vllm.config import CUDAGraphMode

    found = dispatcher(full)
    assert found.cudagraph_mode == (CUDAGraphMode.FULL_AND_PIECEWISE if full else CUDAGraphMode.PIECEWISE)
    for requests in range(1, REQUESTS + 1):
        mode, shape = found.dispatch(requests * ROWS, uniform_decode=True)
        assert mode == (CUDAGraphMode.FULL if full else CUDAGraphMode.PIECEWISE)
        assert shape.num_tokens == requests * ROWS and (not full or shape.num_reqs == requests)
        assert found.dispatch(requests * ROWS, uniform_decode=False)[0] == CUDAGraphMode.PIECEWISE, "a prompt's chunk of as many rows"
    wanted = {(requests * ROWS, requests) for requests in range(1, REQUESTS + 1)} if full else set()
    told = {(shape.num_tokens, shape.num_reqs) for mode, shapes in found.get_capture_descs() if mode == CUDAGraphMode.FULL for shape in shapes}
    assert told == wanted
