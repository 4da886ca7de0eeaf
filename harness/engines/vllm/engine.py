"""vLLM behind the harness's engine contract."""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.cache_folder import cache_folder
from harness.engines.base import room_behind
from harness.engines.vllm.arguments import Settings, engine_arguments, environment
from harness.engines.vllm.client import EngineCrash, EngineProcess, close_together, start_together
from harness.engines.vllm.process import write_request
from harness.engines.vllm.settings import choose_settings
from harness.errors import UserError
from harness.models.config import tensor_shapes
from harness.models.export import hugging_face_folder
from harness.models.huggingface import read_folder
from harness.models.vocabulary import load_vocabulary
from harness.models.weights import resolve, sha256
from harness.records import Decoded, Request

# Cells alternate between processes that are all loaded, so that drift of clocks and neighbours hits all strategies alike.
PROCESSES = "one for each strategy, all loaded, one decodes at a time"


class VLLMEngine:
    """See ``harness.engines.base.Engine``; the options are explained in ``conf/engine/vllm.yaml``.

    A process that cannot be loaded or that dies makes its strategy's cells fail; what vLLM or a strategy refuses by name
    is a ``UserError``.
    """

    def __init__(
        self,
        model: Mapping,
        strategies: Mapping[str, Mapping],
        device: str = "auto",
        threads: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 4096,
        kv_cache_gib: float = 1.0,
        gpu_memory_utilization: float = 0.9,
        enforce_eager: bool | None = None,
        timeout_s: float = 600.0,
        start_timeout_s: float = 1200.0,
    ) -> None:
        path = resolve(model)
        vocabulary = load_vocabulary(path)
        if vocabulary.checksum is None or vocabulary.context_length is None:
            raise UserError(f"{path}: has no weights, or its config.json no max_position_embeddings; fetch the folder again")
        self._checksum, self._tokenizer, self.end_tokens = vocabulary.checksum, vocabulary.tokenizer, vocabulary.tokenizer.end_tokens
        settings, dtype = choose_settings(
            model["dtype"], vocabulary.context_length, device, threads, max_model_len, max_num_seqs, max_num_batched_tokens, kv_cache_gib,
            gpu_memory_utilization / len(strategies), enforce_eager,
        )  # fmt: skip
        folder = hugging_face_folder(path, dtype)
        self._sizes = sizes(folder, dtype.itemsize)
        self.context_length = settings.max_model_len
        arguments = {name: engine_arguments(folder, settings, config) for name, config in strategies.items()}
        self._drafters = {name: _drafter(given) for name, given in arguments.items()}
        self._processes = {
            name: EngineProcess(name, plain(strategies[name]), given, variables(name, settings), start_timeout_s, timeout_s)
            for name, given in arguments.items()
        }
        self._peaks: tuple[int, int] | None = None
        atexit.register(self.close)
        if settings.device == "cpu":
            self._start_in_turn()
        else:
            self._start_together()

    def _start_in_turn(self) -> None:
        """Load one strategy after another. One that crashes is tried again by its cells, which then fail by themselves."""
        crashes = {}
        for name, process in self._processes.items():
            try:
                process.start()
            except EngineCrash as crash:
                crashes[name] = crash
        if len(crashes) == len(self._processes):
            raise UserError(f"engine=vllm: no strategy could be loaded; {next(iter(crashes.values()))}; see python -m harness.probe")

    def _start_together(self) -> None:
        """Load all strategies at once: on a GPU most of a start is compiling, on one core. One that crashes ends the run.

        Every process is told the bytes of its cache, so that none measures free memory while others take theirs.
        """
        try:
            start_together(self._processes.values())
        except EngineCrash as crash:
            raise UserError(f"engine=vllm: {crash}; see python -m harness.probe") from crash

    def close(self) -> None:
        close_together(self._processes.values())

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        return self._tokenizer.render(messages)

    def text(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(list(tokens))

    def decode(self, strategy: str, request: Request) -> Decoded:
        room_behind(request, self.context_length)
        answer = self._processes[strategy].ask({"decode": write_request(request)})
        self._peaks = tuple(answer["peaks"])
        return Decoded.from_json(answer["decoded"])

    def peaks(self) -> tuple[int, int]:
        return self._peaks

    def margin(self, prompt_ids: Sequence[int], prefix: Sequence[int]) -> float:
        return next(iter(self._processes.values())).ask({"margin": [*prompt_ids, *prefix]})["margin"]

    def profile(self, strategy: str, request: Request, **what: Any) -> dict[str, Any]:
        """A strategy's rounds under torch's profiler; ``what`` are the arguments of ``profiling.profiled`` behind ``request``."""
        return self._processes[strategy].ask({"profile": {"request": write_request(request), **what}})["profiled"]

    def settings(self) -> Mapping[str, Any]:
        """What all processes share, and in ``differs`` what they do not, by strategy."""
        live = {name: process.settings for name, process in self._processes.items() if process.settings}
        names = {key: None for settings in live.values() for key in settings}
        values = {key: {name: settings.get(key) for name, settings in live.items()} for key in names}
        measured = {"copy_bytes_per_s": max(values.pop("copy_bytes_per_s").values())}
        shared = {key: next(iter(found.values())) for key, found in values.items() if _equal(found)}
        return {
            **shared,
            **measured,
            **self._sizes,
            "differs": {key: found for key, found in values.items() if not _equal(found)},
            "context_length": self.context_length,
            "end_tokens": list(self.end_tokens),
            "model_sha256": self._checksum,
            "drafters": self._drafters,
            "processes": PROCESSES,
            "probe": {name: process.probe for name, process in self._processes.items()},
        }


def sizes(folder: Path, itemsize: int) -> dict[str, int]:
    """``weight_bytes`` and ``cache_bytes_per_token`` of a dense model, as the torch engine counts them; else nothing.

    vLLM repacks weights, so that its modules no longer tell their size.
    """
    try:
        config, *_ = read_folder(folder)
    except UserError:
        return {}
    shapes = tensor_shapes(config)
    if not config.tied_head:
        del shapes["model.embed_tokens.weight"]  # of which a pass reads a few rows only
    return {
        "weight_bytes": itemsize * sum(math.prod(shape) for shape in shapes.values()),
        "cache_bytes_per_token": 2 * config.num_layers * config.num_kv_heads * config.head_dim * itemsize,
    }


def variables(name: str, settings: Settings) -> dict[str, str]:
    """Those of the process of the arm ``name``. On a GPU each keeps what it compiles to itself: all write at the same time."""
    own = environment(settings)
    if settings.device != "cpu":
        root = os.environ.get("VLLM_CACHE_ROOT") or Path(cache_folder()) / "vllm"
        own["VLLM_CACHE_ROOT"] = str(Path(root) / name)
    return own


def plain(config: Mapping) -> dict[str, Any]:
    """A strategy's configuration as plain data, for another process."""
    from omegaconf import DictConfig, OmegaConf

    return OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else dict(config)


def _drafter(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Names and sha256 of the files behind a strategy's drafter; ``None`` where the model drafts by itself."""
    folder = (arguments.get("speculative_config") or {}).get("model")
    if folder is None or folder == arguments["model"]:
        return None
    files = sorted(Path(folder).glob("*.safetensors"))
    return {"files": [file.name for file in files], "sha256": sha256(files)}


def _equal(found: Mapping[str, Any]) -> bool:
    first, *others = found.values()
    return all(other == first for other in others)
