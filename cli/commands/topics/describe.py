"""``txnlog topics describe``: all about some topics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.topic_fields import print_topic, put_topic
from txnlog.cli.session import Session
from txnlog.errors import TxnlogError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from txnlog.inspect.descriptions import TopicDescription
    from txnlog.store import Store


def describe_topics(
    session: Session,
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC", help="Topics: names, or patterns such as 'ord*'."),
    ],
) -> None:
    """Show offsets, sizes, settings, transactions of topics.

    START is the first offset, STABLE where read_committed stops, END the next offset to be
    given, OPEN whose transactions are open there. CONFIG shows what differs from the
    defaults; `topics config get` shows all.

    \b
    Example:
      txnlog topics describe orders
      txnlog topics describe 'ord*' paid
    """
    store = session.open_to_read()
    if len(topics) == 1 and not _is_pattern(topics[0]):
        print_topic(session.output, store.topics.describe(topics[0]))
        return
    with DamageReporter() as reporter:
        session.output.documents(reporter.skip_unreadable(_find(store, topics)), put_topic)


def _is_pattern(name: str) -> bool:
    return re.search(r"[*?\[]", name) is not None


def _describe(store: Store, name: str) -> Iterator[TopicDescription | TxnlogError]:
    try:
        yield store.topics.describe(name)
    except TxnlogError as error:
        yield error


def _find(store: Store, names: Sequence[str]) -> Iterator[TopicDescription | TxnlogError]:
    """What each name or pattern stands for, in this order and each topic once."""
    shown: set[str] = set()
    for name in names:
        none = True
        of_pattern = store.topics.describe_all([name]).with_errors() if _is_pattern(name) else None
        for topic in of_pattern or _describe(store, name):
            none = False
            if isinstance(topic, TxnlogError):
                yield topic
            elif topic.topic not in shown:
                shown.add(topic.topic)
                yield topic
        if none:
            yield UnknownTopicOrPartition(f"no topic is called {name!r}")
