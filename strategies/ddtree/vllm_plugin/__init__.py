"""DDTree inside vLLM, without a fork: vLLM's own DFlash drafts, this plugin makes trees of its blocks and verifies them.

It does nothing unless a configuration selects it: ``worker_cls`` names ``strategies.ddtree.vllm_plugin.worker.DDTreeWorker``
and ``additional_config`` holds ``{"ddtree": {"budget": N}}``, perhaps with ``"full_graphs": true`` beside N. How it works is drawn in docs/vllm.md.
"""

from __future__ import annotations

import logging

WORKER = "strategies.ddtree.vllm_plugin.worker.DDTreeWorker"


def full_graphs(vllm_config) -> bool:
    """Whether passes over whole trees are to be captured with attention in them, and the plugin's work around them beside."""
    return vllm_config.additional_config["ddtree"].get("full_graphs", False)


def register() -> None:
    """The entry point of vLLM's plugin group, called in each of its processes: leaves vLLM exactly as it is."""
    logging.getLogger("vllm").debug("DDTree can be selected with --worker-cls %s", WORKER)
