"""A command line whose wrong usage is one line, as everywhere here."""

from __future__ import annotations

import argparse
from typing import NoReturn

from harness.errors import UserError


class Parser(argparse.ArgumentParser):
    """Raises ``UserError`` where argparse would print its usage and leave."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")
