"""Damage that does not end a command: reported at once, remembered for the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import typer

from txnlog.cli.output.streams import FAILURE, DamageFound, warn
from txnlog.errors import CorruptEntry, CorruptRecord, TxnlogError

if TYPE_CHECKING:
    from txnlog.results import DamagedRecords

T = TypeVar("T")


class DamageReporter:
    """Reports damage on stderr; at the end of its block the command ends with exit code 3.

    Other read failures are not damage: then the exit code is 1.
    """

    def __init__(self) -> None:
        self._found = self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None and self._found:
            raise DamageFound
        if kind is None and self._failed:
            raise typer.Exit(FAILURE)

    def report(self, reason: str | None) -> None:
        """Report damage, if there is any."""
        if reason is None:
            return
        self._found = True
        warn(reason)

    def report_records(self, skip: bool) -> Callable[[DamagedRecords], None]:
        """Reports records that cannot be read; if they are to be skipped, only on stderr."""

        def report(damaged: DamagedRecords) -> None:
            if skip:
                warn(f"skipped {damaged.offset_count} records at most: {damaged}")
            else:
                self.report(str(damaged.error()))

        return report

    def skip_unreadable(self, items: Iterator[T | TxnlogError]) -> Iterator[T]:
        """The items that could be read; those that could not are reported."""
        for item in items:
            if isinstance(item, TxnlogError):
                self.report_error(item)
            else:
                yield item

    def report_error(self, error: TxnlogError, what: str = "") -> None:
        """Report a failure: damage, or something else."""
        reason = f"{what}{error}"
        if isinstance(error, (CorruptEntry, CorruptRecord)):
            self.report(reason)
        else:
            self._failed = True
            warn(reason)

    def watch(
        self, items: Iterable[T], damages: Callable[[T], Iterable[str | None]]
    ) -> Iterator[T]:
        """All items; an item's damage is reported after it has been shown."""
        for item in items:
            yield item
            for reason in damages(item):
                self.report(reason)
