"""What stands in for captured graphs where there is no GPU."""

from contextlib import nullcontext

import torch


class Again:
    """Does recorded work again, on the tensors that its owner had when it was recorded: one that moved since is a fault that
    a graph would not notice. ``watch``: what is around the work while it is captured."""

    replays = 0

    def __init__(self, work, watch=nullcontext) -> None:
        self._work, self._owner = work, work.__self__
        for _ in range(2):
            work()
        with watch():
            work()
        self._places = self._where()

    def _where(self) -> dict:
        tensors = {name: value for name, value in vars(self._owner).items() if torch.is_tensor(value)}
        return {name: (value.data_ptr(), value.shape, value.stride(), value.dtype) for name, value in tensors.items()}

    def __call__(self) -> None:
        assert self._where().items() >= self._places.items(), "a tensor is no longer where it was recorded"
        Again.replays += 1
        self._work()
