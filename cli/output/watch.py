"""``--watch``: repeats a verb's output."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from txnlog.cli.output.fields import Field, show_time
from txnlog.cli.output.patience import Patience
from txnlog.cli.output.streams import flush, holding_back, warn, write

if TYPE_CHECKING:
    from txnlog.cli.output.output import Output

T = TypeVar("T")
_CLEAR = "\x1b[H\x1b[2J"


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
    from txnlog.errors import StorageError

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
