"""A bug planted on purpose: which text of which file becomes which other text, and which tests must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class Stale(Exception):
    """The text that a mutant replaces does not stand exactly once in its file any more."""


@dataclass(frozen=True)
class Mutant:
    """``tests`` are files that must have a failing test when ``new`` stands in ``file`` in place of ``old``.

    ``gated``: the outputs stay the target's, and only acceptance changes. ``python -m harness.gate`` must notice too.
    """

    name: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    gated: bool = False

    def applied_to(self, text: str) -> str:
        """``text`` of ``file`` with the bug in it. Raises ``Stale``."""
        count = text.count(self.old)
        if count != 1:
            raise Stale(f"{self.name}: its old text stands {count} times in {self.file}, not once; write the mutant anew: {self.old!r}")
        return text.replace(self.old, self.new)

    def plant(self, root: Path) -> None:
        """Write the bug into the tree at ``root``: a copy, never the one that is worked in."""
        path = root / self.file
        path.write_text(self.applied_to(path.read_text(encoding="utf-8")), encoding="utf-8")
