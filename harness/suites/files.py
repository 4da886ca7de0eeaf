"""Reads a prompt file's records and refuses any that are not the pinned ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from pathlib import Path

from harness.errors import UserError
from harness.suites.catalogue import FETCHABLE, PromptFile


def canonical(records: list[dict]) -> bytes:
    """The records as JSON without a choice left: keys sorted, no spaces, ASCII. Order of the records is kept."""
    return json.dumps(records, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def read_pinned(entry: PromptFile, path: Path) -> list[dict]:
    """The records of ``path``, in file order; raises ``UserError`` when it is missing, unreadable or wrong."""
    return pinned(entry, _bytes(entry, path), str(path))


def pinned(entry: PromptFile, data: bytes, where: str) -> list[dict]:
    """The records in ``data``; raises ``UserError``, which says ``where``, unless they are what the catalogue pins.

    For files that are pinned by their bytes nothing is parsed before the checksum fits.
    """
    if entry.pin == "bytes":
        _require(entry, where, hashlib.sha256(data).hexdigest())
        return _parse(data, entry.file)
    try:
        records = _parse(data, entry.file)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{where}: not readable as {entry.file} ({type(error).__name__}); it is truncated or altered: "
            f"expected rows with sha256 {entry.sha256}; get it again from {entry.source}"
        ) from error
    _require(entry, where, hashlib.sha256(canonical(records)).hexdigest())
    return records


def _bytes(entry: PromptFile, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        name = next((name for name, known in FETCHABLE.items() if known is entry), "all")
        raise UserError(
            f"{entry.file} is not in {path.parent}: run python -m harness.suites fetch {name}, or get it from "
            f"{entry.source} and store it there under that name, or set suite.root to the folder that holds it"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); make it a readable file") from error


def _require(entry: PromptFile, where: str, found: str) -> None:
    if found != entry.sha256:
        raise UserError(
            f"{where}: wrong {entry.pin}: expected sha256 {entry.sha256}, found {found}; "
            f"the file is truncated or altered, get it again from {entry.source}"
        )


def _parse(data: bytes, name: str) -> list[dict]:
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    text = data.decode()
    if name.endswith(".json"):
        return json.loads(text)
    return [json.loads(line) for line in text.split("\n") if line.strip()]
