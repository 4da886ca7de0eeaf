"""The worker that a configuration selects: vLLM's own, whose model runner and attention are made to verify trees."""

from __future__ import annotations

from importlib import import_module

from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from harness.errors import UserError
from strategies.ddtree.vllm_plugin import full_graphs
from strategies.ddtree.vllm_plugin.plan import shapes
from strategies.ddtree.vllm_plugin.refusals import refuse
from strategies.ddtree.vllm_plugin.replaying import ReplayingRunner
from strategies.ddtree.vllm_plugin.runner import TreeRunner
from strategies.ddtree.vllm_plugin.versions import check_seams

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker

    DEVICE, ATTENTION = "cpu", ("cpu_attention", "TreeCPUBackend")
else:
    from vllm.v1.worker.gpu_worker import Worker

    DEVICE, ATTENTION = "cuda", ("flash_attention", "TreeFlashBackend")


class DDTreeWorker(Worker):
    """Refuses what is not covered before anything is loaded."""

    def init_device(self) -> None:
        if getattr(self, "use_v2_model_runner", False):
            raise UserError("DDTree on vLLM builds on the V1 model runner; set VLLM_USE_V2_MODEL_RUNNER=0")
        refuse(self.vllm_config)
        check_seams(DEVICE)
        module, name = f"strategies.ddtree.vllm_plugin.{ATTENTION[0]}", ATTENTION[1]
        attention = getattr(import_module(module), name).get_impl_cls()
        # For this process alone: every layer that would run on vLLM's own backend runs on its subclass.
        register_backend(AttentionBackendEnum[attention.BACKEND], f"{module}.{name}")
        super().init_device()
        runner = ReplayingRunner if full_graphs(self.vllm_config) else TreeRunner
        runner.adopt(self.model_runner, attention)

    def tree_shapes(self, request_id: str) -> list[tuple[int, int]]:
        """Depth and width of a request's trees, a step each, its prefill's (0, 0) first; told once."""
        return shapes(self.model_runner.shapes.pop(request_id, ()))

    def chained_requests(self) -> int:
        """How many requests asked for what only a chain gives, since the start."""
        return self.model_runner.chained_requests
