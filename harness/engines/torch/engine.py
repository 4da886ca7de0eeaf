"""The embedded engine: one target, loaded once, shared by every strategy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from harness.engines.base import room_behind
from harness.engines.torch.bytes_moved import cache_bytes_per_token, copy_bytes_per_s, weight_bytes
from harness.engines.torch.captured import CapturedPool
from harness.engines.torch.costs import RoundCosts
from harness.engines.torch.decode import decode, decode_with
from harness.engines.torch.device import pick_device, pick_dtype, use_cpu_kernels
from harness.errors import UserError
from harness.models.dense import build
from harness.models.weights import load_checkpoint, resolve, sha256
from harness.records import Decoded, Request
from kernels import on_gpu, pack, products_of
from kernels.native.layers import NativeLinear
from strategies.base import Proposer, TargetView

MOST_THREADS = os.cpu_count() or 1


class TorchEngine:
    """See ``harness.engines.base.Engine``. ``threads`` None leaves torch's own choice; ``captured_graphs`` None: on a GPU.

    ``cpu_kernels`` None: the C kernels where they are of use and can be compiled.
    """

    def __init__(
        self,
        model: Mapping,
        strategies: Mapping[str, Mapping],
        device: str = "auto",
        threads: int | None = None,
        captured_graphs: bool | None = None,
        cpu_kernels: bool | None = None,
    ) -> None:
        from hydra.utils import instantiate

        if threads is not None:
            if not 1 <= threads <= MOST_THREADS:
                raise UserError(f"engine.threads={threads} is no number of threads for {MOST_THREADS} cores; give 1 to {MOST_THREADS}, or null")
            torch.set_num_threads(threads)
        self.device = pick_device(device)
        self.dtype = pick_dtype(model["dtype"], self.device)
        use_cpu_kernels(cpu_kernels, self.device, self.dtype)
        checkpoint = load_checkpoint(resolve(model))
        self._tokenizer, self._checksum = checkpoint.tokenizer, checkpoint.checksum
        self.model = build(checkpoint.config, checkpoint.tensors, self.dtype, self.device)
        self._weight_bytes = weight_bytes(self.model)
        pack(self.model)
        self.end_tokens = checkpoint.config.end_tokens
        self.context_length = checkpoint.config.context_length
        view = target_view(self.model)
        self._proposers: dict[str, Proposer] = {name: instantiate(config, target=view) for name, config in strategies.items()}
        self.captured = self._capture(captured_graphs)
        self._costs = RoundCosts(self.model)
        self._captured_rounds = CapturedPool(self.model) if self.captured else None

    def _capture(self, wanted: bool | None) -> bool:
        """Whether rounds are captured: those of all strategies or of none, so that they can be compared."""
        if wanted and self.device.type != "cuda":
            raise UserError(f"engine.captured_graphs=true: engine.device={self.device} has none; take false, or a GPU")
        eager = [name for name, proposer in self._proposers.items() if not proposer.capturable]
        if wanted and eager:
            raise UserError(f"engine.captured_graphs=true: strategy {eager[0]} cannot be captured; take false for all alike")
        return self.device.type == "cuda" and not eager if wanted is None else wanted

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        return self._tokenizer.render(messages)

    def text(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(list(tokens))

    def decode(self, strategy: str, request: Request) -> Decoded:
        return self.decode_batch(strategy, [request])[0]

    def decode_batch(self, strategy: str, requests: Sequence[Request]) -> list[Decoded]:
        for request in requests:
            room_behind(request, self.context_length)
        proposer = self._proposers[strategy]
        if self._captured_rounds is None:
            costs = self._costs.table(strategy, proposer, requests) if proposer.ladder else None
            return decode(self.model, proposer, requests, costs)
        return decode_with(self._captured_rounds.of(strategy, proposer, requests), requests)

    @torch.inference_mode()
    def margin(self, prompt_ids: Sequence[int], prefix: Sequence[int]) -> float:
        tokens = torch.tensor([[*prompt_ids, *prefix]], device=self.device)
        hidden, _ = self.model(tokens, torch.arange(tokens.shape[1], device=self.device)[None])
        first, second = self.model.logits(hidden[:, -1:]).flatten().float().topk(2).values.tolist()
        return first - second

    def costs(self) -> list[dict[str, Any]]:
        """What was measured since the last call (``CostTable``), each with its strategy."""
        source = self._captured_rounds or self._costs
        found, source.measured = source.measured, []
        return [{"strategy": strategy, **table.to_json()} for strategy, table in found]

    def _attention(self) -> str:
        """What attends in a round of the target; in a prefill torch's own does."""
        if on_gpu(self.model.embed.weight):
            return "kernels.triton_kernels.tree_attention"
        native = isinstance(self.model.layers[0].qkv, NativeLinear)
        return "kernels.native.decoder_layers" if native else "scaled_dot_product_attention"

    def settings(self) -> Mapping[str, Any]:
        return {
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "context_length": self.context_length,
            "end_tokens": list(self.end_tokens),
            "model_sha256": self._checksum,
            "drafters": {name: _drafter(proposer) for name, proposer in self._proposers.items()},
            "weight_bytes": self._weight_bytes,
            "cache_bytes_per_token": cache_bytes_per_token(self.model.config, self.dtype),
            "copy_bytes_per_s": copy_bytes_per_s(self.device),
            "attention": self._attention(),
            "cpu_kernels": products_of(self.model),
            "captured_graphs": self.captured,
            "prefix_caching": False,
        }


def target_view(model) -> TargetView:
    """What a strategy may see of a loaded model."""
    config, weight = model.config, model.embed.weight
    return TargetView(
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        num_layers=config.num_layers,
        context_length=config.context_length,
        embed=model.embed,
        head=model.head,
        dtype=weight.dtype,
        device=weight.device,
    )


def _drafter(proposer: Proposer) -> dict[str, Any] | None:
    """Names and sha256 of the files behind a strategy's drafter; ``None`` where it has none."""
    files = proposer.weights_files()
    return {"files": [file.name for file in files], "sha256": sha256(files)} if files else None
