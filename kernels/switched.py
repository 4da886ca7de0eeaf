"""Recorded work as one graph in which the device decides what runs: CUDA's conditional nodes (CUDA programming guide, CUDA graphs)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from kernels.recorded import Recorded

_SWITCH_NODES = 12080  # the first driver version that has them
_SOURCE = b"""
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);
extern "C" __global__ void choose(unsigned long long handle, const long long *picked) {
  cudaGraphSetConditional(handle, (unsigned int)*picked);
}
"""


@cache
def can_switch() -> bool:
    """Whether the current device's driver has such nodes, and Python its calls: the package cuda-bindings from 13 on, which torch's
    builds for CUDA 13 bring. No too where the kernel that speaks to them cannot be compiled or loaded."""
    try:
        if int(version("cuda-bindings").split(".")[0]) < 13 or _driver_version() < _SWITCH_NODES:
            return False
        _chooser(torch.cuda.current_device())
    except (PackageNotFoundError, RuntimeError):
        return False
    return True


class Switched:
    """Calling it replays ``first``, then that of ``cases`` whose number ``first`` left in ``picked`` (int64 ``[1]``), as one graph.

    The host launches it once and is asked nothing in between. All are recorded on one device and share nothing with this graph but
    the tensors they work on. Raises ``RuntimeError`` with CUDA's name for what it refuses; ``can_switch`` must be true.
    """

    def __init__(self, first: Recorded, picked: Tensor, cases: Sequence[Recorded]) -> None:
        from cuda.bindings import driver

        self._kept = first, picked, cases  # their memory is what the graph works on
        context = _given(driver.cuCtxGetCurrent())
        graph = _given(driver.cuGraphCreate(0))
        done = _given(driver.cuGraphAddChildGraphNode(graph, None, 0, _raw(first)))
        handle = _given(driver.cuGraphConditionalHandleCreate(graph, context, 0, 0))

        choose = driver.CUDA_KERNEL_NODE_PARAMS()
        choose.func = _chooser(picked.device.index)
        choose.gridDimX = choose.gridDimY = choose.gridDimZ = choose.blockDimX = choose.blockDimY = choose.blockDimZ = 1
        choose.kernelParams = (int(handle), picked.data_ptr()), (ctypes.c_uint64, ctypes.c_void_p)
        chosen = _given(driver.cuGraphAddKernelNode(graph, [done], 1, choose))

        switch = driver.CUgraphNodeParams()
        switch.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        switch.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_SWITCH
        switch.conditional.handle, switch.conditional.ctx, switch.conditional.size = handle, context, len(cases)
        _given(driver.cuGraphAddNode(graph, [chosen], None, 1, switch))
        for body, case in zip(switch.conditional.phGraph_out, cases, strict=True):
            _given(driver.cuGraphAddChildGraphNode(body, None, 0, _raw(case)))

        self._launch, self._executable = driver.cuGraphLaunch, _given(driver.cuGraphInstantiate(graph, 0))
        _given(driver.cuGraphDestroy(graph))
        weakref.finalize(self, driver.cuGraphExecDestroy, self._executable)

    def __call__(self) -> None:
        _given(self._launch(self._executable, torch.cuda.current_stream().cuda_stream))


@cache
def _chooser(device: int) -> Any:
    """The kernel that hands a number in memory to a conditional node, on ``device``, which is current."""
    from cuda.bindings import driver, nvrtc

    program = _given(nvrtc.nvrtcCreateProgram(_SOURCE, b"choose.cu", 0, [], []))
    major, minor = torch.cuda.get_device_capability(device)
    _given(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=compute_{major}{minor}".encode()]))
    ptx = b" " * _given(nvrtc.nvrtcGetPTXSize(program))
    _given(nvrtc.nvrtcGetPTX(program, ptx))
    _given(nvrtc.nvrtcDestroyProgram(program))
    return _given(driver.cuModuleGetFunction(_given(driver.cuModuleLoadData(ptx)), b"choose"))


def _driver_version() -> int:
    from cuda.bindings import driver

    return _given(driver.cuDriverGetVersion())


def _raw(recorded: Recorded) -> Any:
    from cuda.bindings import driver

    return driver.CUgraph(recorded.graph.raw_cuda_graph())


def _given(answer: tuple) -> Any:
    """What a call of CUDA's gave besides its error code; that raises."""
    error, *values = answer
    if error.value:
        raise RuntimeError(f"CUDA refused a graph with a switch: {error.name}")
    return values[0] if values else None
