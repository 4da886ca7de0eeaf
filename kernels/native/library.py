"""The C kernels as a library: compiled once for this machine by its C compiler, and kept."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SOURCES = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=gnu11")
_AMX_TILES = (158, 0x1023, 18)  # arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): Linux keeps them from who does not ask


@functools.cache
def library(folder: Path) -> ctypes.PyDLL | str:
    """The kernels, compiled into ``folder`` unless they lie there; or in a few words why there are none.

    ``PyDLL``: calls are short and use one scratch memory, so they hold Python's lock.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return "they are for Linux on x86_64"
    try:
        found = ctypes.PyDLL(str(_compiled(folder)))
        found.products.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:  # no file of a library, or one without the kernels
        return str(error)
    except subprocess.CalledProcessError as error:
        return f"{error.cmd[0]} fails: {error.stderr.decode(errors='replace').strip().splitlines()[-1:]}"
    except subprocess.TimeoutExpired as error:
        return f"{error.cmd[0]} takes more than {error.timeout:.0f} s"
    if products(found) == "AMX" and ctypes.CDLL(None).syscall(*_AMX_TILES) != 0:
        return "the system does not give this process AMX"
    pointer, whole, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    found.linear.argtypes = [pointer, pointer, ctypes.c_float, long, whole, whole, pointer, pointer, whole]
    found.decoder_layers.argtypes = [pointer, whole, *[pointer] * 2, *[long] * 2, *[pointer] * 4, *[long] * 3, *[pointer] * 2, whole]
    found.candidates.argtypes = [pointer, long, long, whole, pointer, pointer, whole]
    found.candidates.restype = found.linear.restype = found.decoder_layers.restype = None
    return found


def products(found: ctypes.PyDLL) -> str:
    """What multiplies: AMX, AVX-512 with bf16, AVX-512, AVX2 or plain."""
    return found.products().decode()


def _compiled(folder: Path) -> Path:
    """The library's file. Its name holds all that it depends on; several processes may compile it at once."""
    compiler = next(filter(None, map(shutil.which, [os.environ.get("CC", ""), *COMPILERS])), None)
    if compiler is None:
        raise OSError("no C compiler")
    files = sorted(SOURCES.glob("*.[ch]"))
    machine = [compiler, "-march=native", "-E", "-v", "-x", "c", os.devnull]
    version = subprocess.run(machine, capture_output=True, timeout=60, check=True).stderr
    depends = [*(file.read_bytes() for file in files), *map(str.encode, FLAGS), torch.__version__.encode(), version]
    name = hashlib.sha256(b"\0".join(depends)).hexdigest()[:32]
    target = folder / f"{name}.so"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            made = Path(beside) / target.name
            command = [compiler, *FLAGS, *map(str, SOURCES.glob("*.c")), "-o", str(made), "-lm"]
            subprocess.run(command, capture_output=True, timeout=120, check=True)
            with made.open("rb") as written:
                os.fsync(written.fileno())  # a power cut leaves no half of it under its name
            made.replace(target)
    return target
