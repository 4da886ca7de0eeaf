"""The one exception that a user is meant to read, and what others say, in one line."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend. The message is one line: what was wrong, with which value, and the way out.

    The command line prints it without a traceback and exits with status 2.
    """


def one_line(error: BaseException) -> str:
    """What ``error`` says, in one line; its kind where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def kind_and_line(error: BaseException) -> str:
    """The kind of ``error`` and what it says, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
