"""A run's folder: what would be needed to repeat it, and one line of JSON per finished cell."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import UserError
from harness.records import Decoded

CELLS = "cells.jsonl"


class Key(NamedTuple):
    """What makes a cell the one it is. ``turn`` counts a conversation's user turns from 0."""

    prompt: str
    turn: int
    strategy: str
    repetition: int


@dataclass(frozen=True)
class Failure:
    """Why a cell has no output: the exception's class and its message."""

    kind: str
    message: str


@dataclass(frozen=True)
class Cell:
    """One measured (prompt, turn, strategy, repetition): a ``decoded`` record or a ``failure``, never both.

    ``prompt_sha256`` is over the prompt's token ids, written in decimal with spaces between. ``order`` counts the
    cells of a run in the order in which they were measured.
    """

    key: Key
    category: str
    order: int
    prompt_tokens: int = 0
    prompt_sha256: str = ""
    decoded: Decoded | None = None
    text: str = ""
    failure: Failure | None = None
    host_peak_bytes: int = 0
    device_peak_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**self.key._asdict(), **{k: v for k, v in asdict(self).items() if k != "key"}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cell:
        rest = {name: value for name, value in data.items() if name not in Key._fields}
        rest["decoded"] = Decoded.from_json(rest["decoded"]) if rest["decoded"] else None
        rest["failure"] = Failure(**rest["failure"]) if rest["failure"] else None
        return cls(key=Key(*(data[name] for name in Key._fields)), **rest)


class Store:
    """Writes and reads one run's folder. Cells are appended and flushed one by one, so a killed run keeps them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, root: str, label: str, now: datetime) -> Store:
        """A new folder ``root/<timestamp>-<label>``; a number is added when two runs start in the same second."""
        stem = f"{now:%Y%m%d-%H%M%S}-{label}"
        for number in range(1, 100):
            folder = Path(root) / (stem if number == 1 else f"{stem}-{number}")
            try:
                folder.mkdir(parents=True)
                return cls(folder)
            except FileExistsError:
                if not Path(root).is_dir():
                    break
            except OSError as error:
                raise UserError(f"cannot make the run's folder {folder}: {error.strerror}; set measure.root") from error
        raise UserError(f"cannot make a run's folder under {root}; set measure.root to a folder that can be written")

    def append(self, cell: Cell) -> None:
        line = json.dumps(cell.to_json(), ensure_ascii=False, allow_nan=False)
        with open(self.folder / CELLS, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def cells(self) -> Iterator[Cell]:
        path = self.folder / CELLS
        if path.exists():
            with open(path, encoding="utf-8") as file:
                yield from (Cell.from_json(json.loads(line)) for line in file)

    def write_text(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def write_json(self, name: str, data: Any) -> None:
        self.write_text(name, json.dumps(finite(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def finite(data: Any) -> Any:
    """The same data with what JSON has no word for, NaN and infinities, as ``null``."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(name): finite(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return data
