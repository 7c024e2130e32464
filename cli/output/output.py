"""How verbs print: one interface, and behind it tables for people and JSON for programs.

A verb calls :meth:`Output.rows` once for a list, or opens one :meth:`Output.document`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypedDict, TypeVar, Unpack

from txnlog.cli.output.fields import Field

T = TypeVar("T")


class Document(Protocol):
    """One thing with its parts."""

    def fields(self, fields: Sequence[Field[T]], item: T) -> None:
        """Properties of the thing itself."""

    def rows(
        self, key: str, title: str, fields: Sequence[Field[T]], items: Iterable[T] | None
    ) -> None:
        """A list that is part of the thing; None if its content is unknown."""


class ListLayout(TypedDict, Generic[T], total=False):
    """How to print a list. All but ``streamed`` is for people.

    streamed: the list may not fit into memory: print while it is consumed. live: items arrive one
    by one, with pauses: print each when it is taken. heading: a line above each run of items that
    have the same one. below: lines printed under an item. cut: whether those are truncated to a
    terminal's width.
    """

    streamed: bool
    live: bool
    heading: Callable[[T], str] | None
    below: Callable[[T], Iterable[str]] | None
    cut: bool


class Output(Protocol):
    """Prints to stdout. Raises OutputClosed when nobody reads on."""

    def rows(
        self, fields: Sequence[Field[T]], items: Iterable[T], **layout: Unpack[ListLayout[T]]
    ) -> None:
        """Print a list: these fields of each item.

        If taking an item raises, those before it are printed first.
        """

    def document(self) -> AbstractContextManager[Document]:
        """Print one thing; it is complete when the block ends."""

    def documents(self, items: Iterable[T], put: Callable[[Document, T], None]) -> None:
        """Print several things, each as a document that ``put`` fills.

        If taking an item raises, those before it are printed first.
        """
