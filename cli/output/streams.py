"""Data on stdout, messages on stderr, and how a command can end: its exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, TypeVar

from txnlog.cli.input.storage_options import redact
from txnlog.cli.output.escape import escape_controls, shorten

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


ItemT = TypeVar("ItemT")


def write(data: str) -> None:
    """Write to stdout. Raises OutputClosed when nobody reads on."""
    try:
        sys.stdout.write(data)
    except BrokenPipeError:
        raise OutputClosed from None


def write_bytes(data: bytes) -> None:
    """Write bytes of the user's own to stdout. Raises OutputClosed when nobody reads on."""
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        raise OutputClosed from None


def flush() -> None:
    """Flush: a closed pipe or a full disk is noticed here. Raises OutputClosed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def first(items: Iterable[ItemT], most: int | None) -> Iterator[ItemT]:
    """The first ``most`` items; None for all."""
    return islice(items, None if most is None else min(most, sys.maxsize))


_said: list[str] | None = None
_count = 0


def warn(message: str) -> None:
    """A message for people, kept out of the data."""
    global _count  # noqa: PLW0603 - stderr is one for the process too
    _count += 1
    if _said is not None:
        _said.append(message)
        return
    print("txnlog: " + escape_controls(shorten(redact(message))), file=sys.stderr)


def warned() -> int:
    """How many messages were printed so far. A list may lack things that they are about."""
    return _count


@contextmanager
def holding_back() -> Iterator[list[str]]:
    """Collect the block's messages, for the caller to print when it likes."""
    global _said  # noqa: PLW0603
    before, _said = _said, []
    try:
        yield _said
    finally:
        _said = before
