"""How verbs print: one interface, and behind it tables for people and JSON for programs.

A verb calls :meth:`Output.rows` once for a list, or opens one :meth:`Output.document`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from txnlog.cli.output.exits import OutputClosed
from txnlog.cli.output.fields import Field, harmless

T = TypeVar("T")


class Document(Protocol):
    """One thing with its parts."""

    def fields(self, fields: Sequence[Field[T]], item: T) -> None:
        """Properties of the thing itself."""

    def rows(self, key: str, title: str, fields: Sequence[Field[T]], items: Iterable[T]) -> None:
        """A list that is a part of the thing."""


class Output(Protocol):
    """Prints to stdout. Raises OutputClosed when nobody reads on."""

    def rows(
        self,
        fields: Sequence[Field[T]],
        items: Iterable[T],
        *,
        streamed: bool = False,
        live: bool = False,
        heading: Callable[[T], str] | None = None,
        below: Callable[[T], Iterable[str]] | None = None,
    ) -> None:
        """Print a list.

        Args:
            fields: what to show of an item.
            items: taken one by one; if taking one raises, those before it are printed first.
            streamed: the list may be longer than memory: print while it is taken.
            live: items come one by one, with time between them: print each when it is taken.
            heading: for people: a line above each run of items that have the same one.
            below: for people: lines to be printed under an item.
        """

    def document(self) -> AbstractContextManager[Document]:
        """Print one thing; it is complete when the block ends."""


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
    """Let out what was written: a closed pipe or a full disk shows here. Raises OutputClosed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def warn(message: str) -> None:
    """A message for people that must not get into the data."""
    from txnlog.cli.input.storage_options import redacted

    print("txnlog: " + harmless(redacted(message)), file=sys.stderr)
