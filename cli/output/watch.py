"""Verbs that run until stopped: ``--watch``, and patience with a storage that fails for a while."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from txnlog.cli.output.fields import Field, show_time
from txnlog.cli.output.streams import flush, holding_back, warn, write
from txnlog.errors import StorageError

if TYPE_CHECKING:
    from txnlog.cli.output.output import Output

T = TypeVar("T")

_CLEAR = "\x1b[H\x1b[2J"
_PATIENCE_S: Final = 60.0
"""After failing this long a storage is not tried again."""


class Patience:
    """How long a storage has been failing."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def bear(self, error: StorageError) -> None:
        """Report the first failure. Raises a permanent error, or one that has lasted a minute."""
        now_s = time.monotonic()
        if self._since_s is None:
            warn(f"{error}; trying again")
            self._since_s = now_s
        if not error.retriable or now_s - self._since_s > _PATIENCE_S:
            raise error

    def end(self) -> None:
        """Record a success."""
        self._since_s = None


def watch_rows(
    output: Output,
    fields: list[Field[T]],
    find: Callable[[], Iterable[T]],
    interval_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> NoReturn:
    """Print the output, with the time, until Ctrl-C: on a terminal in place of the previous one.

    Raises the errors of the verb; a temporary StorageError after a minute.
    """
    patience = Patience()
    clears = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    while True:
        try:
            with holding_back() as said:
                found = list(find())
        except StorageError as error:
            patience.bear(error)
        else:
            patience.end()
            if clears:
                now = show_time(time.time_ns() // 1_000_000)
                write(f"{_CLEAR}{now}, every {interval_s:g} s, Ctrl-C ends it\n\n")
                flush()
            for message in said:  # on a terminal they would have been cleared away
                warn(message)
            output.rows(fields, found)
            flush()
        sleep(interval_s)
