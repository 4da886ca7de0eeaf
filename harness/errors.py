"""The one exception that a user is meant to read."""


class UserError(Exception):
    """Something the user can mend. The message is one line: what was wrong, with which value, and the way out.

    The command line prints it without a traceback and exits with status 2.
    """
