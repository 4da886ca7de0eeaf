"""Named tensors that stay in their file until they are asked for."""

from collections.abc import Callable, Iterator, Mapping

import torch

from harness.errors import UserError
from harness.models.config import ModelConfig, tensor_shapes


class LazyTensors(Mapping[str, torch.Tensor]):
    """Tensors by name. Each access reads (and dequantises) anew, so take each once: what you drop costs no memory."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], torch.Tensor]):
        self.shapes = dict(shapes)
        self._read = read

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def model_tensors(tensors: LazyTensors, config: ModelConfig, file: str) -> LazyTensors:
    """The tensors that `config` asks for, checked by name and shape without reading any of them.

    Raises UserError naming `file` for a tensor that is missing, has another shape, or that the dense model could not
    use: computing without it would give another model's tokens.
    """
    wanted = tensor_shapes(config)
    for name, shape in wanted.items():
        if name not in tensors:
            raise UserError(f"{file} lacks the tensor {name} that its configuration asks for; fetch it again")
        if tensors.shapes[name] != shape:
            raise UserError(
                f"{file}: tensor {name} has shape {list(tensors.shapes[name])} where the configuration says "
                f"{list(shape)}; use the configuration that belongs to these weights"
            )
    for name in tensors:
        if name not in wanted and not _derived(name, config):
            family = config.family
            raise UserError(f"{file}: tensor {name} has no place in a dense {family} model; choose another model")
    return LazyTensors(wanted, tensors.__getitem__)


def _derived(name: str, config: ModelConfig) -> bool:
    """Tensors that repeat what the configuration says already: old rotary buffers, and the copy of a tied head."""
    return name.endswith("rotary_emb.inv_freq") or (config.tied_head and name == "lm_head.weight")
