"""Output for people: tables in colour on a terminal, plain aligned text in a pipe.

Whatever is shown is escaped here, whichever field it is from: a terminal obeys none of it.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, TypeVar, Unpack

from txnlog.cli.output.escape import escape_controls
from txnlog.cli.output.fields import Field
from txnlog.cli.output.output import Document, ListLayout
from txnlog.cli.output.streams import warned, write

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

_WIDE_CHARS = 120
"""Terminals from this width on show all columns."""
_MEASURED_ROWS = 100
"""How many rows set the widths of a stream's columns."""
_LEAST_CHARS = 16
"""Names are not wrapped to less than this."""


class TableOutput:
    """Tables. On a terminal with rich, elsewhere with nothing but spaces.

    Sizes are in units on a terminal, unless ``in_bytes``.
    """

    def __init__(self, *, in_bytes: bool = False) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        self._terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._in_bytes = in_bytes
        self._warned = warned()

    def rows(
        self, fields: Sequence[Field[T]], items: Iterable[T], **layout: Unpack[ListLayout[T]]
    ) -> None:
        if not self._terminal:
            self._print(fields, items, layout)
            return
        empty = True

        def watched() -> Iterator[T]:
            nonlocal empty
            for item in items:
                empty = False
                yield item

        self._print(fields, watched(), layout)
        before, self._warned = self._warned, warned()
        if empty and self._warned == before:  # else some could not be read
            write("none\n")

    def _print(self, fields: Sequence[Field[T]], items: Iterable[T], layout: ListLayout[T]) -> None:
        columns = self._columns(fields)
        if self._terminal and not any(layout.values()):
            _print_rich(columns, items)
            return
        measured = 1 if layout.get("live") else _MEASURED_ROWS
        line_chars = shutil.get_terminal_size().columns if self._terminal else None
        _print_plain(
            *(columns, items, measured, line_chars),
            layout.get("heading"),
            layout.get("below"),
            cut=layout.get("cut", False),
        )

    @contextmanager
    def document(self) -> Iterator[_TableDocument]:
        yield _TableDocument(self)

    def documents(self, items: Iterable[T], put: Callable[[Document, T], None]) -> None:
        for number, item in enumerate(items):
            write("\n" if number else "")
            put(_TableDocument(self), item)

    def _columns(self, fields: Sequence[Field[T]]) -> list[Field[T]]:
        all_fit = not self._terminal or shutil.get_terminal_size().columns >= _WIDE_CHARS
        if all_fit:
            return self.shown(fields)
        return [
            replace(field, title=(field.title or "").replace("PARTITION", "PART"))
            for field in self.shown(fields)
            if not field.wide
        ]

    def shown(self, fields: Sequence[Field[T]]) -> list[Field[T]]:
        """The fields for people, as shown here."""
        return [
            self._show_here(replace(field, title=escape_controls(field.title)))
            for field in fields
            if field.title
        ]

    def _show_here(self, field: Field[T]) -> Field[T]:
        if field.glance is None or not self._terminal or (self._in_bytes and field.numeric):
            return field
        title = (field.title or "").replace("BYTES", "SIZE")
        return replace(field, title=title, show=field.glance)


class _TableDocument:
    """Properties line by line, then a table for each part."""

    def __init__(self, output: TableOutput) -> None:
        self._output = output

    def fields(self, fields: Sequence[Field[T]], item: T) -> None:
        shown = self._output.shown(fields)
        width = max(len(field.title or "") for field in shown)
        for field in shown:
            shown_here = escape_controls(field.show(item))
            write(f"{(field.title or '').lower():{width}}  {shown_here}\n")

    def rows(
        self, key: str, title: str, fields: Sequence[Field[T]], items: Iterable[T] | None
    ) -> None:
        del key  # for programs
        title = escape_controls(title)
        if items is None:
            write(f"\n{title}: unknown\n")
            return
        found = list(items)
        if not found:
            write(f"\n{title}: none\n")
            return
        write(f"\n{title}:\n")
        self._output.rows(fields, found)


def _print_plain(
    columns: Sequence[Field[T]],
    items: Iterable[T],
    measured: int,
    line_chars: int | None,
    heading: Callable[[T], str] | None,
    below: Callable[[T], Iterable[str]] | None,
    *,
    cut: bool,
) -> None:
    # Formatted items are kept until the columns are measured; an item may be large.
    source = (
        (
            escape_controls(heading(item)) if heading else None,
            _show_cells(columns, item),
            partial(below, item) if below else tuple[str],
        )
        for item in items
    )
    first, failure = _take(source, measured)
    if failure is not None and not first:
        raise failure
    if line_chars is not None and line_chars < _WIDE_CHARS and len(first) < measured:
        # All items are known here, so what none of them has can be left out.
        kept = [
            number
            for number, column in enumerate(columns)
            if not column.seldom or any(cells[number] for _, cells, _ in first)
        ]
        columns = [columns[number] for number in kept]
        first = [(title, [cells[n] for n in kept], lines) for title, cells, lines in first]
    widths = [
        max(len(column.title or ""), *(_chars(cells[number]) for _, cells, _ in first), 0)
        for number, column in enumerate(columns)
    ]
    fitting = _fit(columns, widths, line_chars)
    _write_row(columns, fitting, [column.title or "" for column in columns])
    current = None
    for title, shown, lines in chain(first, source if failure is None else ()):
        if title is not None and title != current:
            current = title
            write(f"{current}\n")
        if measured == 1:
            # Later items are unknown: columns grow with them.
            widths = [max(width, _chars(cell)) for width, cell in zip(widths, shown, strict=True)]
            fitting = _fit(columns, widths, line_chars)
        if line_chars is not None:
            shown = [
                _cut(cell, width) if column.elastic else cell
                for column, width, cell in zip(columns, fitting, shown, strict=True)
            ]
        for row in _fold(columns, fitting, shown) if line_chars is not None else [shown]:
            _write_row(columns, fitting, row)
        for line in lines():
            line = f"  {escape_controls(line)}"
            write(f"{_cut(line, line_chars) if cut and line_chars is not None else line}\n")
    if failure is not None:
        raise failure


def _take(source: Iterator[T], count: int) -> tuple[list[T], Exception | None]:
    """Up to ``count`` items, and the error that ended them early."""
    taken: list[T] = []
    try:
        for item in source:
            taken.append(item)
            if len(taken) == count:
                break
    except Exception as error:  # noqa: BLE001 - the caller raises it again, after printing
        return taken, error
    return taken, None


def _show_cells(columns: Sequence[Field[T]], item: T) -> list[str]:
    return [escape_controls(column.show(item)) for column in columns]


def _fit(
    columns: Sequence[Field[T]], widths: Sequence[int], line_chars: int | None
) -> Sequence[int]:
    """Widths with which a line fits: elastic columns share the remaining width."""
    if line_chars is None:
        return widths
    left = line_chars - 2 * (len(columns) - 1)
    if not any(column.elastic for column in columns):
        return _squeeze(columns, widths, left)
    left -= sum(width for column, width in zip(columns, widths, strict=True) if not column.elastic)
    elastic = {number: column.elastic for number, column in enumerate(columns) if column.elastic}
    fitting = [*widths]
    # The narrowest for its share first: its unused width goes to the others.
    shares = sum(elastic.values())
    for number in sorted(elastic, key=lambda number: widths[number] / elastic[number]):
        share = max(left * elastic[number] // shares, len(columns[number].title or ""))
        fitting[number] = min(widths[number], share)
        left -= fitting[number]
        shares -= elastic[number]
    return fitting


def _squeeze(columns: Sequence[Field[T]], widths: Sequence[int], left: int) -> Sequence[int]:
    """Widths with which a line fits if its longest names are wrapped."""
    fitting = [*widths]
    names = [number for number, column in enumerate(columns) if not is_rigid(column)]
    while names and sum(fitting) > left:
        widest = max(names, key=fitting.__getitem__)
        if fitting[widest] <= max(len(columns[widest].title or ""), _LEAST_CHARS):
            return widths  # wrapped further it would be less readable than a long line
        fitting[widest] -= 1
    return fitting


def _chars(cell: str) -> int:
    """How many columns of a terminal it takes: of Chinese and emoji each character takes two."""
    if cell.isascii():
        return len(cell)
    from rich.cells import cell_len

    return cell_len(cell)


def _cut(cell: str, width: int) -> str:
    if _chars(cell) <= width:
        return cell
    from rich.cells import set_cell_size

    return f"{set_cell_size(cell, width - 1)}…"


def _write_row(columns: Sequence[Field[T]], widths: Sequence[int], cells: Sequence[str]) -> None:
    padded = []
    for column, width, cell in zip(columns, widths, cells, strict=True):
        space = " " * (width - _chars(cell))
        padded.append(space + cell if column.numeric else cell + space)
    write("  ".join(padded).rstrip(" ") + "\n")


def _fold(
    columns: Sequence[Field[T]], widths: Sequence[int], cells: Sequence[str]
) -> Iterator[Sequence[str]]:
    """The lines of a row: long names continue on the next one."""
    pieces = [
        [cell] if is_rigid(column) or _chars(cell) <= width else _fold_cell(cell, width)
        for column, width, cell in zip(columns, widths, cells, strict=True)
    ]
    return zip_longest(*pieces, fillvalue="")


def _fold_cell(cell: str, width: int) -> list[str]:
    """Lines that break between words; within one only if it is longer than a line."""
    from rich.text import Text

    return [line.plain.rstrip() for line in Text(cell).wrap(_measuring(), width, overflow="fold")]


@cache
def _measuring() -> Console:
    """Rich needs a console to wrap, though it prints to none here."""
    from rich.console import Console

    return Console(file=io.StringIO())


def is_rigid(column: Field[T]) -> bool:
    """Whether a column's text is never wrapped: a wrapped number or time could not be read."""
    return column.numeric or column.key.endswith("_ms")


def _print_rich(columns: Sequence[Field[T]], items: Iterable[T]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        header_style="bold",
        padding=(0, 1, 0, 0),  # with the box's own column: two spaces, as in a pipe
    )
    for column in columns:
        table.add_column(
            column.title or "",
            justify="right" if column.numeric else "left",
            overflow="fold",
            no_wrap=is_rigid(column),
        )
    for item in items:
        # As Text, because a name may look like rich's own markup.
        table.add_row(*map(Text, _show_cells(columns, item)))
    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as captured:
        console.print(table)
    write(captured.get())
