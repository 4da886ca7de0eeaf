"""What stored results of the scripts here tell of the machine: what it is, and none of its folders."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import environment

ROOT = Path(__file__).resolve().parent.parent


def where() -> dict[str, Any]:
    """The machine and the software."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": environment.git_state(ROOT),
        "python": platform.python_version(),
        "cpu": environment.cpu()["model"],
        "torch": environment.torch_build(),
        "packages": environment.packages(),
    }


def nowhere(text: str, folder: Path) -> str:
    """``text`` with words in place of ``folder`` and the other folders of this machine."""
    places = {
        str(folder): "FOLDER",
        sys.prefix: "PYTHON",
        str(ROOT): "REPOSITORY",
        os.environ.get("HARNESS_CACHE", ""): "CACHE",
        str(Path.home()): "HOME",
    }
    for place, name in places.items():
        text = text.replace(place, name) if len(place) > 1 else text
    return text
