"""Damage that does not end a command: reported at once, remembered for the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from txnlog.cli.exits import Damaged
from txnlog.cli.output import warn
from txnlog.errors import TxnlogError

T = TypeVar("T")


class Reporter:
    """Says on stderr what is damaged; at the end of its block the command ends with exit code 3."""

    def __init__(self) -> None:
        self._found = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None and self._found:
            raise Damaged

    def report(self, reason: str) -> None:
        """Say what is damaged."""
        self._found = True
        warn(reason)

    def healthy(self, items: Iterable[T | TxnlogError]) -> Iterator[T]:
        """The items that could be read; those that could not are reported."""
        for item in items:
            if isinstance(item, TxnlogError):
                self.report(str(item))
            else:
                yield item
