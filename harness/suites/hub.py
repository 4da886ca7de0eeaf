"""Reads files of the hub's data sets: JSON lines, a JSON list, or Parquet where pyarrow is installed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.errors import UserError, one_line
from harness.suites.catalogue import HubSet
from harness.suites.seen import Seen, agree, recall

FORMATS = (".jsonl", ".json", ".parquet")
_CHUNK = 1 << 20


def read_hub(name: str, entry: HubSet, root: Path, revision: str | None, file: str | None) -> tuple[list[dict], str]:
    """The records of ``name`` at ``revision`` and their checksum; raises ``UserError`` when they are not to be had.

    ``file`` names the file, or several with commas between; ``None``: those that ``fetch`` stored under ``root``.
    """
    if not revision:
        raise UserError(
            f"suite.revision={revision or 'null'}: {name} has no known checksum, so say which revision of {entry.source} it is "
            f"(a commit id), and give suite.file=FILE or run: python -m harness.suites fetch {name} --revision COMMIT"
        )
    before = recall(root, name, revision)
    if file:
        files = [Path(part.strip()).expanduser() for part in file.split(",")]
    elif before:
        files = before.paths(root)
    else:
        raise UserError(
            f"{name} at revision {revision} is not in {root}: give suite.file=FILE, or run: "
            f"python -m harness.suites fetch {name} --revision {revision}"
        )
    records, sha256 = read_files(entry, files)
    agree(root, Seen.now(root, name, revision, sha256, len(records), files))
    return records, sha256


def read_files(entry: HubSet, files: list[Path]) -> tuple[list[dict], str]:
    """The records of ``files`` in order, cut down to the fields of a prompt, and the SHA-256 over all their bytes."""
    digest = hashlib.sha256()
    records: list[dict] = []
    for file in files:
        require_format(file.name)
        try:
            for number, record in enumerate(_records(file, digest), start=1):
                records.append(_fields(entry, file, number, record))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or one_line(error)
            raise UserError(f"{file}: cannot be read ({reason}); get it again from {entry.source}") from error
    if not records:
        raise UserError(f"{', '.join(map(str, files))}: no rows; get it again from {entry.source}")
    return records, digest.hexdigest()


def require_format(name: str) -> None:
    """Raise ``UserError`` unless files of this name can be read here."""
    if not name.endswith(FORMATS):
        raise UserError(f"{name}: must end in one of {', '.join(FORMATS)}")
    if name.endswith(".parquet") and importlib.util.find_spec("pyarrow") is None:
        raise UserError(f"{name}: Parquet needs the package pyarrow; install it, or convert the file to JSON lines")


def _records(file: Path, digest: Any) -> Iterator[Any]:
    if file.suffix == ".jsonl":
        # Line by line: LiveCodeBench's files hold gigabytes of tests beside the questions.
        with file.open("rb") as lines:
            for line in lines:
                digest.update(line)
                if line.strip():
                    yield json.loads(line)
        return
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    if file.suffix == ".parquet":
        import pandas

        yield from pandas.read_parquet(file, engine="pyarrow").to_dict("records")
        return
    loaded = json.loads(file.read_bytes())
    if not isinstance(loaded, list):
        raise ValueError("not a list of rows")
    yield from loaded


def _fields(entry: HubSet, file: Path, number: int, record: Any) -> dict[str, str]:
    for field in entry.fields:
        if not isinstance(record, dict) or not isinstance(record.get(field), str):
            raise UserError(f"{file}: row {number} has no text in {field!r}; is this a file of {entry.source}?")
    return {field: record[field] for field in entry.fields}
