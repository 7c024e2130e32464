"""``txnlog topics ls``: topics with their sizes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeVar

import typer

from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.streams import warn
from txnlog.cli.output.topic_fields import SUMMARY
from txnlog.cli.session import Session

T = TypeVar("T")


def list_topics(
    session: Session,
    patterns: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN", help="Only these: names, or 'ord*'."),
    ] = None,
) -> None:
    """List topics with their sizes.

    RECORDS is the sum of end minus start offsets: aborted records that still take up
    offsets are counted. ENTRIES is the length of the topic's log, OPEN counts the
    transactions that are not decided.

    \b
    Example:
      txnlog topics ls --store /data/store
      txnlog topics ls 'ord*' paid
    """
    found = session.open_to_read().topics.describe_all(patterns or ["*"]).with_errors()
    matched = False

    def note(topics: Iterable[T]) -> Iterator[T]:
        nonlocal matched
        for topic in topics:
            matched = True
            yield topic

    with DamageReporter() as reporter:
        session.output.rows(SUMMARY, reporter.skip_unreadable(note(found)))
    if patterns and not matched and sys.stderr.isatty():  # a program sees that there is none
        warn(f"no topic is called {' or '.join(patterns)}")
