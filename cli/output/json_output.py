"""Output for programs: JSON in UTF-8, as one document or one object per line."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, Unpack

from txnlog.cli.output.escape import Json, dump_json
from txnlog.cli.output.fields import Field, to_json
from txnlog.cli.output.output import Document, ListLayout
from txnlog.cli.output.streams import OutputClosed, write

T = TypeVar("T")


class _JsonDocument:
    """Collects the parts of one object."""

    def __init__(self) -> None:
        self.content: dict[str, Json] = {}

    def fields(self, fields: Sequence[Field[T]], item: T) -> None:
        self.content.update(to_json(fields, item))

    def rows(
        self, key: str, title: str, fields: Sequence[Field[T]], items: Iterable[T] | None
    ) -> None:
        del title  # for people
        self.content[key] = None if items is None else [to_json(fields, item) for item in items]


def _fill(put: Callable[[Document, T], None], item: T) -> dict[str, Json]:
    document = _JsonDocument()
    put(document, item)
    return document.content


class JsonOutput:
    """One document: an array for a list, an object for one thing."""

    def __init__(self) -> None:
        _use_utf8()

    def rows(
        self, fields: Sequence[Field[T]], items: Iterable[T], **layout: Unpack[ListLayout[T]]
    ) -> None:
        del layout  # arrays are always streamed; the rest is for people
        self._array(dump_json(to_json(fields, item)) for item in items)

    def documents(self, items: Iterable[T], put: Callable[[Document, T], None]) -> None:
        self._array(dump_json(_fill(put, item), indent=2) for item in items)

    def _array(self, dumped: Iterable[str]) -> None:
        write("[")
        separator = "\n"
        closing = True
        try:
            for item in dumped:
                write(separator + item)
                separator = ",\n"
        except OutputClosed:
            closing = False
            raise
        finally:
            # Even after an error half-way: the output is then still a complete document.
            if closing:
                write("]\n" if separator == "\n" else "\n]\n")

    @contextmanager
    def document(self) -> Iterator[_JsonDocument]:
        document = _JsonDocument()
        yield document
        write(dump_json(document.content, indent=2) + "\n")


class JsonLinesOutput:
    """One object per line, for a list as for one thing."""

    def __init__(self) -> None:
        _use_utf8()

    def rows(
        self, fields: Sequence[Field[T]], items: Iterable[T], **layout: Unpack[ListLayout[T]]
    ) -> None:
        del layout  # lines are always streamed; the rest is for people
        for item in items:
            write(dump_json(to_json(fields, item)) + "\n")

    def documents(self, items: Iterable[T], put: Callable[[Document, T], None]) -> None:
        for item in items:
            write(dump_json(_fill(put, item)) + "\n")

    @contextmanager
    def document(self) -> Iterator[_JsonDocument]:
        document = _JsonDocument()
        yield document
        write(dump_json(document.content) + "\n")


def _use_utf8() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A lone surrogate in a name becomes \udcXX, as in JSON.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
