"""What was seen under a name and revision: suites of the hub have no checksum here until a user's file gives one.

The first reading of ``aime24`` at revision R writes ``aime24@R.json`` into the suites' folder; a later reading of other
bytes under the same name and revision is refused, wherever they lie.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness import typed
from harness.errors import UserError, kind_and_line

_REVISION = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)*")


@dataclass(frozen=True)
class Seen:
    """``sha256`` is over the bytes of ``files``, one after another. Paths in the suites' folder are relative to it."""

    name: str
    revision: str
    sha256: str
    rows: int
    files: tuple[str, ...]
    when: str

    @classmethod
    def now(cls, root: Path, name: str, revision: str, sha256: str, rows: int, files: list[Path]) -> Seen:
        named = tuple(str(f.relative_to(root)) if f.is_relative_to(root) else str(f.absolute()) for f in files)
        return cls(name, revision, sha256, rows, named, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")

    def paths(self, root: Path) -> list[Path]:
        return [root / file for file in self.files]


def stem(name: str, revision: str) -> str:
    """``name@revision`` fit for a file name. Raises ``UserError`` for a revision that no repository can have."""
    if not _REVISION.fullmatch(revision):
        raise UserError(f"revision {revision!r}: must be a commit id, or a branch or tag, of the data set's repository")
    return f"{name}@{revision.replace('/', '_')}"


def recall(root: Path, name: str, revision: str) -> Seen | None:
    """What was seen before under this name and revision."""
    path = root / f"{stem(name, revision)}.json"
    return _read(path) if path.is_file() else None


def recall_all(root: Path) -> Iterator[tuple[Path, Seen | UserError]]:
    """Every record in ``root``, and for a damaged one the error that says so."""
    for path in sorted(root.glob("*@*.json")):
        try:
            yield path, _read(path)
        except UserError as error:
            yield path, error


def agree(root: Path, seen: Seen) -> None:
    """Raise ``UserError`` if other bytes were seen before; else keep the record.

    The first reading writes it, and a later one that finds the same bytes elsewhere because the first are gone.
    """
    path = root / f"{stem(seen.name, seen.revision)}.json"
    before = recall(root, seen.name, seen.revision)
    if before is None or (before.sha256 == seen.sha256 and not all(f.is_file() for f in before.paths(root))):
        _write(path, seen)
    elif before.sha256 != seen.sha256:
        raise UserError(
            f"{seen.name}: other bytes than before under revision {seen.revision}: sha256 {seen.sha256} now, "
            f"{before.sha256} on {before.when}; use those, name another revision, or remove {path}"
        )


def _read(path: Path) -> Seen:
    try:
        found = typed.record(Seen, json.loads(path.read_text(encoding="utf-8")))
        if not found.files or path.name != f"{stem(found.name, found.revision)}.json":
            raise ValueError(f"of {found.name} at revision {found.revision}, with {len(found.files)} files")
        return found
    except (OSError, ValueError, UserError) as error:
        raise UserError(f"{path}: not a readable record ({kind_and_line(error)}); remove it to start anew") from error


def _write(path: Path, seen: Seen) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(asdict(seen), indent=2) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise UserError(f"{path}: cannot be written ({error.strerror}); set suite.root to a folder that can") from error
