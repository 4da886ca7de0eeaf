"""Files test_triton_*.py run on the GPU where there is one; elsewhere each in a child whose Triton interprets kernels.

Triton decides when it is imported whether it interprets, for the whole process: hence the child. To run one test of such a
file without a GPU: ``TRITON_INTERPRET=1 python -m pytest tests/test_triton_tree.py -k NAME``.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"


def mend_ranges() -> None:
    """Let the interpreter make Python numbers of loaded bounds: it asks numpy for the number of an array of one element,
    which numpy 2.4 refuses. Loops over a range are what a GPU pipelines, so kernels keep them."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def mend_products() -> None:
    """Let the interpreter multiply bf16, which it keeps as whole numbers of 16 bits and multiplies as such."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    create_dot = interpreter.InterpreterBuilder.create_dot

    def wide(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def mended(self, a, b, d, *options):
        return create_dot(self, wide(a), wide(b), d, *options)

    interpreter.InterpreterBuilder.create_dot = mended


def collector(path, parent):
    """What stands for the file at ``path``; None: the file itself."""
    if not path.name.startswith("test_triton_") or INTERPRETED or DEVICE == "cuda":
        return None
    return InterpretedFile.from_parent(parent, path=path)


class InterpretedFile(pytest.File):
    def collect(self):
        yield Child.from_parent(self, name="in_the_interpreter")


class Child(pytest.Item):
    def runtest(self):
        if importlib.util.find_spec("triton") is None:
            pytest.skip("Triton is not installed")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(self.path)]
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=self.config.rootpath)
        if done.returncode != 0:
            raise AssertionError(done.stdout[-6000:] + done.stderr[-2000:])

    def repr_failure(self, excinfo):
        return str(excinfo.value)

    def reportinfo(self):
        return self.path, None, self.name


if INTERPRETED:
    mend_ranges()
    mend_products()
