"""Ctrl-C while the command starts: a line and 130, whichever module is just being loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# As if Ctrl-C were pressed at the moment when Python looks for the module.
PROGRAM = """
import os, runpy, signal, sys
module = sys.argv.pop(1)
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
runpy.run_module("harness", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["harness.interrupt", "harness.command", "hydra", "yaml", "harness.run", "scipy", "torch"])
def test_a_line_and_no_traceback(module):
    command = [sys.executable, "-c", PROGRAM, module, "suite.limit=1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted before anything was measured\n")
