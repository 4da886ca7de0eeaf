"""Checks a plugin's options against the function that will receive them.

A strategy or an engine is whatever its ``_target_`` names, from this repository or any other, so the harness has no
list of their options: the factory's signature is the schema. A factory that takes ``**options`` accepts any key.
"""

from __future__ import annotations

import inspect
import logging
import types
import typing
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any

from hydra.utils import get_object

from harness.errors import UserError

# Of a path that cannot be imported Hydra logs its own lines; here a UserError says it, in one.
logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)

_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def check_options(group: str, config: Mapping[str, Any], supplied: Collection[str]) -> None:
    """Raise ``UserError`` unless ``config`` holds what its ``_target_`` wants. ``supplied`` is not the user's."""
    for required in ("name", "_target_"):
        if not isinstance(config.get(required), str) or not config[required]:
            raise UserError(f"{group}.{required}={said(config.get(required))}: must be text; every {group} config has one")
    factory = _locate(group, config["_target_"])
    parameters = inspect.signature(factory).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = [n for n in known if n not in supplied]
    given = {name: value for name, value in config.items() if not name.startswith("_")}
    for name in given:
        if name not in known and name not in supplied and not takes_any:
            raise UserError(f"{group}.{name}: unknown key of {config['name']}; {choose(name, known)}")
    for name in known:
        if parameters[name].default is inspect.Parameter.empty and name not in given:
            raise UserError(f"{group}.{name}: missing, {config['_target_']} needs it; add +{group}.{name}=VALUE")
    hints = _hints(factory)
    for name, value in given.items():
        _check_type(f"{group}.{name}", value, hints.get(name))


def choose(wrong: str, choices: Collection[str]) -> str:
    """The way out of a wrong name: the closest choice first, then all of them."""
    close = get_close_matches(str(wrong), [str(c) for c in choices], n=1)
    nearest = f"did you mean {close[0]}? " if close else ""
    return f"{nearest}choose one of {', '.join(map(str, choices))}" if choices else f"{nearest}there are none"


def _locate(group: str, path: str) -> Callable:
    try:
        found = get_object(path)
    except Exception as error:  # importing a plugin may fail in any way
        reason = " ".join(str(error.__cause__ or error).split())
        raise UserError(f"{group}._target_={path}: cannot be imported ({reason}); install or mend it") from error
    if not callable(found):
        raise UserError(f"{group}._target_={path}: is not a function or class; name one that builds the {group}")
    return found


def _hints(factory: Callable) -> dict[str, Any]:
    try:
        return typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except Exception:  # annotations that only a type checker can resolve: then the factory is left to check
        return {}


def wanted(hint: Any) -> str | None:
    """What a value of this type is called, ``None`` for types beyond text, numbers, true or false, null, and given words."""
    names = {**_SCALARS, types.NoneType: "null"}
    words = [" or ".join(map(said, typing.get_args(kind))) if _is_literal(kind) else names.get(kind) for kind in _kinds(hint)]
    return None if None in words else " or ".join(words)


def said(value: Any) -> str:
    """A value as it is written on the command line."""
    return {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)


def _kinds(hint: Any) -> tuple:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _is_literal(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Literal


def _check_type(key: str, value: Any, hint: Any) -> None:
    words = wanted(hint)
    if words and not any(_is(value, kind) for kind in _kinds(hint)):
        raise UserError(f"{key}={said(value)}: must be {words}")


def _is(value: Any, kind: Any) -> bool:
    if _is_literal(kind):
        return any(type(value) is type(word) and value == word for word in typing.get_args(kind))
    if value is None or kind is types.NoneType:
        return value is None and kind is types.NoneType
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
