"""How a command can end: exit codes, and the exceptions that lead to them."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
DAMAGE: Final = 3
HANGING: Final = 4
INTERRUPTED: Final = 130
OUTPUT_CLOSED: Final = 141
"""The exit code of a program that SIGPIPE ended: its reader has left, which is not a failure."""


class OutputClosed(Exception):
    """The reader has closed our output."""


class DamageFound(Exception):
    """Damage was found; it has been reported already, and everything else has been shown."""
