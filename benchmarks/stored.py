"""How the scripts here store results, and what these tell of the machine: what it is, and none of its folders."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import environment
from harness.store import Store

ROOT = Path(__file__).resolve().parent.parent


def where() -> dict[str, Any]:
    """The machine and the software."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": environment.git_state(ROOT),
        "python": platform.python_version(),
        "cpu": environment.cpu()["model"],
        "gpus": environment.gpus(),
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


def write(path: Path, found: Any) -> None:
    """``found`` as JSON, a line a value, whole or not at all; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Store(path.parent).write_text(path.name, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def fill(page: Path, name: str, text: str) -> None:
    """Put ``text`` between ``<!-- NAME -->`` and ``<!-- /NAME -->`` of ``page``, in place of what is there."""
    block = f"<!-- {name} -->\n{text}\n<!-- /{name} -->"
    filled, found = re.subn(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _: block, page.read_text(encoding="utf-8"), flags=re.S)
    if not found:
        sys.exit(f"{page.name} has no <!-- {name} --> … <!-- /{name} --> block")
    page.write_text(filled, encoding="utf-8")
