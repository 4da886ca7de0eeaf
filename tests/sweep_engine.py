"""The made-up engine as a sweep's jobs meet it: it tells its process, and some budgets bring it down."""

import os
import signal
import subprocess

from fake_engine import FakeEngine

KILLED, IN_VAIN, LEAVES_A_PROCESS = 13, 14, 15
LEAVES_NOTHING, LEAVES_HALF, PRESSES_CTRL_C, FAILS_IN_COLOUR = 21, 22, 23, 24


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
        if self.budget == LEAVES_NOTHING:
            os._exit(0)
        if self.budget == FAILS_IN_COLOUR:
            os.write(2, b"\x1b[31;1mout of\x1b[0m\x00 memory\x07 \xff\n")
            os._exit(3)

    def settings(self):
        return {"pid": os.getpid(), "built": self.built, "left": self.left}

    def decode(self, strategy, request):
        if self.budget == IN_VAIN:
            raise RuntimeError("out of memory")
        if self.budget == LEAVES_HALF and self.calls == 3:
            os._exit(0)
        if self.budget == PRESSES_CTRL_C and self.calls == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return super().decode(strategy, request)
