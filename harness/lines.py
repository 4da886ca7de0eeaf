"""Files of JSON lines that only grow: a line is finished when its newline is on disk, and carries its own checksum."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import UserError

_CHECKED = re.compile(rb', "crc32": "([0-9a-f]{8})"\}$')


def append(path: Path, *rows: Mapping[str, Any]) -> None:
    """Add a line for each of ``rows``, all in one write, and wait until the disk has them. No row may be empty."""
    texts = [json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") for row in rows]
    try:
        with open(path, "ab") as file:
            file.write(b"".join(text[:-1] + b', "crc32": "%08x"}\n' % zlib.crc32(text) for text in texts))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; make room, then go on with resume=FOLDER") from error


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every finished line's data; none where there is no file. Raises ``UserError`` for a line that was altered."""
    if not path.exists():
        return
    try:
        finished, _, _ = path.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    for number, line in enumerate(finished.split(b"\n") if finished else (), 1):
        yield _parse(line, f"{path}, line {number}")


def repair(path: Path) -> int:
    """Cut off what a killed process left of its last line, so that the next begins anew; returns the bytes cut."""
    if not path.exists():
        return 0
    try:
        with open(path, "r+b") as file:
            data = file.read()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                file.truncate(whole)
                os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"{path}: cannot be read and mended: {error.strerror}; put it back, or run anew") from error
    return len(data) - whole


def _parse(line: bytes, where: str) -> dict[str, Any]:
    found = _CHECKED.search(line)
    if not found:
        raise UserError(f"{where}: has no checksum, so it was cut, altered or not written by this harness; {_WAY_OUT}")
    text = line[: found.start()] + b"}"
    if zlib.crc32(text) != int(found[1], 16):
        raise UserError(f"{where}: was altered after it was written: its checksum differs; {_WAY_OUT}")
    try:
        return parsed(text)
    except ValueError as error:
        raise UserError(f"{where}: is no JSON ({error}); {_WAY_OUT}") from error


def parsed(text: str | bytes) -> dict[str, Any]:
    """The object that a JSON text holds. Raises ``ValueError``, also for what JSON has no word for: NaN and infinities."""
    data = json.loads(text, parse_constant=_no_number)
    if not isinstance(data, dict):
        raise ValueError(f"{type(data).__name__} instead of an object")
    return data


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


_WAY_OUT = "restore the file from a copy, or measure again"
