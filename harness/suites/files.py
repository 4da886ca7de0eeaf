"""Reads a prompt file's records and refuses any that are not the pinned ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from pathlib import Path

from harness.errors import UserError
from harness.suites.catalogue import PromptFile


def canonical(records: list[dict]) -> bytes:
    """The records as JSON without a choice left: keys sorted, no spaces, ASCII. Order of the records is kept."""
    return json.dumps(records, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def read_pinned(entry: PromptFile, path: Path) -> list[dict]:
    """The records of ``path``, in file order.

    Raises ``UserError`` when the file is missing, cannot be read, or is not what the catalogue pins. For files that
    are pinned by their bytes nothing is parsed before the checksum fits.
    """
    data = _bytes(entry, path)
    if entry.pin == "bytes":
        _require(entry, path, hashlib.sha256(data).hexdigest())
        return _parse(data, path.name)
    try:
        records = _parse(data, path.name)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}: not readable as {entry.file} ({type(error).__name__}); it is truncated or altered: "
            f"expected rows with sha256 {entry.sha256}; get it again from {entry.source}"
        ) from error
    _require(entry, path, hashlib.sha256(canonical(records)).hexdigest())
    return records


def _bytes(entry: PromptFile, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"{entry.file} is not in {path.parent}: get it from {entry.source}, "
            f"store it there under that name, or set suite.root to the folder that holds it"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); make it a readable file") from error


def _require(entry: PromptFile, path: Path, found: str) -> None:
    if found != entry.sha256:
        raise UserError(
            f"{path}: wrong {entry.pin}: expected sha256 {entry.sha256}, found {found}; "
            f"the file is truncated or altered, get it again from {entry.source}"
        )


def _parse(data: bytes, name: str) -> list[dict]:
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    text = data.decode()
    if name.endswith(".json"):
        return json.loads(text)
    return [json.loads(line) for line in text.split("\n") if line.strip()]
