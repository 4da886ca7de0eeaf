"""One question to an engine's installation, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from harness.errors import one_line

FOUND, MISSING, BROKEN = "found", "missing", "broken"


@dataclass(frozen=True)
class Row:
    """``state`` is found, missing or broken; ``follows`` says what comes of it; without a ``needed`` row nothing can run."""

    what: str
    state: str
    detail: str
    follows: str
    needed: bool = False

    @property
    def prevents(self) -> bool:
        return self.needed and self.state != FOUND

    def to_json(self) -> dict:
        return asdict(self)


def look(what: str, find: Callable[[], str | None], follows: str, needed: bool = False) -> Row:
    """Ask ``find``: it returns a detail (found) or ``None`` (missing); whatever it raises means broken."""
    try:
        detail = find()
    except ModuleNotFoundError as error:
        return Row(what, MISSING, one_line(error), follows, needed)
    except Exception as error:  # files can exist and fail to import in any way
        return Row(what, BROKEN, f"{type(error).__name__}: {one_line(error)}", follows, needed)
    return Row(what, MISSING, "not there", follows, needed) if detail is None else Row(what, FOUND, detail, follows, needed)
