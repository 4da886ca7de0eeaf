"""The made-up engine as a sweep's jobs meet it: it tells its process, and some budgets bring it down."""

import os
import signal
import subprocess

from fake_engine import FakeEngine

KILLED, IN_VAIN, LEAVES_A_PROCESS = 13, 14, 15


class SweepEngine(FakeEngine):
    """``built`` counts the engines that this process has made."""

    built = 0

    def __init__(self, model, strategies, **options) -> None:
        super().__init__(model, strategies, **options)
        type(self).built += 1
        self.budget = next(config["budget"] for config in strategies.values() if "budget" in config)
        self.left = subprocess.Popen(["sleep", "600"]).pid if self.budget == LEAVES_A_PROCESS else None
        if self.budget == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)

    def settings(self):
        return {"pid": os.getpid(), "built": self.built, "left": self.left}

    def decode(self, strategy, request):
        if self.budget == IN_VAIN:
            raise RuntimeError("out of memory")
        return super().decode(strategy, request)
