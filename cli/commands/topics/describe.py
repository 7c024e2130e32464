"""``txnlog topics describe``: all about one topic."""

from __future__ import annotations

from txnlog.cli.input.options import TopicArgument
from txnlog.cli.output.topic_fields import print_topic
from txnlog.cli.session import Session


def describe_topic(
    session: Session,
    topic: TopicArgument,
) -> None:
    """Show offsets, sizes, settings, transactions of a topic.

    START is the first offset, STABLE where read_committed stops, END the next offset to be
    given, OPEN whose transactions are open there. CONFIG shows what differs from the
    defaults; `topics config get` shows all.

    \b
    Example:
      txnlog topics describe orders
    """
    print_topic(session.output, session.open_store().describe_topic(topic))
