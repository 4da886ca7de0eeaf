"""Stored data as dataclasses and named tuples again: every field there, of its own kind, every number finite."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar

Record = TypeVar("Record")

_LARGEST = 2**63  # what fits a column of whole numbers


def record(kind: type[Record], data: Any) -> Record:
    """An instance of ``kind``, a dataclass or named tuple, from what JSON made of one, those inside it included.

    A field whose default says that it was not taken (``None``, or an empty tuple) may be missing. Raises ``ValueError`` for
    any other that is, for one that ``kind`` lacks, and for a value of another kind.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__}: {data!r} is no object")
    hints = _hints(kind)
    if unknown := [str(name) for name in data if name not in hints]:
        raise ValueError(f"{kind.__name__} has no {min(unknown)}")
    if missing := [name for name in _required(kind) if name not in data]:
        raise ValueError(f"{kind.__name__}.{missing[0]} is missing")
    return kind(**{name: _value(hints[name], value, f"{kind.__name__}.{name}") for name, value in data.items()})


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@lru_cache
def _required(kind: type) -> tuple[str, ...]:
    if not is_dataclass(kind):
        return kind._fields
    return tuple(f.name for f in fields(kind) if not (f.default is None or f.default == ()))


def _value(hint: Any, value: Any, where: str) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = typing.get_args(hint)
        if value is None and types.NoneType in kinds:
            return None
        (hint,) = (kind for kind in kinds if kind is not types.NoneType)
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return record(hint, value)
    if typing.get_origin(hint) is tuple and isinstance(value, (list, tuple)):
        inner = typing.get_args(hint)[0]
        return tuple(_value(inner, item, where) for item in value)
    if not _fits(hint, value):
        raise ValueError(f"{where} is {value!r}")
    return value


def _fits(kind: type, value: Any) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return type(value) is int and -_LARGEST <= value < _LARGEST
    return type(value) is kind
