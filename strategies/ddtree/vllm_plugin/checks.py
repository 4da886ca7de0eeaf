"""The plugin's questions to an installation: every seam by its signature, and the attention that trees run on."""

from __future__ import annotations

from harness.probe.rows import BROKEN, FOUND, Row, look
from strategies.ddtree.vllm_plugin.versions import KNOWN, seams


def checks(device: str) -> list[Row]:
    found = [Row(f"seam {seam.owner.partition(':')[2]}.{seam.name}", *_state(seam), seam.why, needed=True) for seam in seams(device)]
    captured = "vllm_full_graphs: whole passes over trees are captured, and the work around them (place, accept, grow)"
    return [
        *found,
        *([look("captured graphs", _graphs, captured)] if device == "cuda" else []),
        look("plugin", _worker, "the worker that --worker-cls names", needed=True),
        look("known version", _known, f"written for vLLM {' and '.join(KNOWN)}; others run while the seams hold"),
    ]


def _state(seam) -> tuple[str, str]:
    try:
        fault = seam.fault()
    except Exception as error:  # a module can fail to import in any way
        fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return (BROKEN, fault) if fault else (FOUND, "as known")


def _worker() -> str:
    from strategies.ddtree.vllm_plugin import worker

    return worker.DDTreeWorker.__qualname__


def _graphs() -> str | None:
    import torch

    return "recorded at the first step of each number of requests" if torch.cuda.is_available() else None


def _known() -> str | None:
    import vllm

    return vllm.__version__ if vllm.__version__.startswith(KNOWN) else None
