"""``txnlog groups ls``: consumer groups with their lag, state and members."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import typer

from txnlog.cli.input.options import IntervalOption
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field
from txnlog.cli.output.group_fields import PLACES, SUMMARY, list_places
from txnlog.cli.output.watch import watch_rows
from txnlog.cli.session import Session

T = TypeVar("T")


def list_groups(
    session: Session,
    every_partition: Annotated[
        bool, typer.Option("--all", help="Each partition of each group, with offset and lag.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Repeat until Ctrl-C; see --interval.")
    ] = False,
    interval: IntervalOption = 2.0,
) -> None:
    """List groups with their lag and state. They have offsets or members.

    LAG counts the records up to the last stable offsets, over the partitions for which the
    group has an offset.

    \b
    Example:
      txnlog groups ls
      txnlog groups ls --all --watch
    """
    found = session.open_to_read().groups.describe_all()

    def show(fields: list[Field[T]], find: Callable[[], Iterable[T]]) -> None:
        if watch:
            watch_rows(session.output, fields, find, interval)
        session.output.rows(fields, find())

    with DamageReporter() as reporter:
        if every_partition:
            show(PLACES, lambda: list_places(reporter.skip_unreadable(found.with_errors())))
        else:
            show(SUMMARY, lambda: reporter.skip_unreadable(found.with_errors()))
