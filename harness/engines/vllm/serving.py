"""``vllm serve`` with the settings that a strategy has in a run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import harness
from harness.engines.vllm.arguments import engine_arguments, environment
from harness.engines.vllm.settings import choose_settings
from harness.models.export import hugging_face_folder
from harness.models.vocabulary import load_vocabulary
from harness.models.weights import resolve

# A run keeps the engine in its own process; a server has one for the API and one for the engine.
_OF_A_RUN = ("VLLM_ENABLE_V1_MULTIPROCESSING",)
# Options that concern a run alone.
_NOT_SERVED = ("timeout_s", "start_timeout_s")


def command(
    model: Mapping, strategy: Mapping, options: Mapping[str, Any], host: str, port: int
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words of the command and its variables. Raises ``UserError`` for what vLLM or the strategy cannot run."""
    path = resolve(model)
    given = {name: value for name, value in options.items() if name not in _NOT_SERVED}
    settings, dtype = choose_settings(model["dtype"], load_vocabulary(path).context_length, **given)
    arguments = engine_arguments(hugging_face_folder(path, dtype), settings, strategy)
    # The API's defaults are plain: what a model's generation_config.json says would change answers behind a client's back.
    arguments |= {"served_model_name": model["name"], "host": host, "port": port, "generation_config": "vllm"}
    variables = {name: value for name, value in environment(settings).items() if name not in _OF_A_RUN}
    return (*_program(arguments.pop("model")), *flags(arguments)), variables | _python_path()


def flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Fields of ``EngineArgs`` as options of the command line; ``None`` is left out."""
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            yield f"--{option}" if value else f"--no-{option}"
        else:
            yield from (f"--{option}", json.dumps(value) if isinstance(value, (dict, list)) else str(value))


def _program(model: str) -> tuple[str, ...]:
    """``vllm serve MODEL``, with the place of ``vllm`` where the shell would find another one than this Python's, or none.

    Builds for CPUs by others carry another package name, and then ``vllm`` itself stumbles over its own version; the same
    server is also a module.
    """
    if find_spec("vllm") is not None and not _has_metadata("vllm"):
        return (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model)
    beside = Path(sys.executable).parent / "vllm"
    return (str(beside) if beside.exists() and shutil.which("vllm") != str(beside) else "vllm", "serve", model)


def _has_metadata(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _python_path() -> dict[str, str]:
    """The engine's processes import the strategies' plugins from where this code lies."""
    root = str(Path(harness.__file__).resolve().parent.parent)
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != root]
    return {"PYTHONPATH": os.pathsep.join([root, *others])}
