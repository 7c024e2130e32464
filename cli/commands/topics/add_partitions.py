"""``txnlog topics add-partitions``: a topic gets more partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.options import DryRunOption, TopicArgument
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.topic_fields import print_topic
from txnlog.cli.session import Session


def add_partitions(
    session: Session,
    topic: TopicArgument,
    to: Annotated[int, typer.Option("--to", min=1, help="How many there are to be in all.")],
    dry_run: DryRunOption = False,
) -> None:
    """Give a topic more partitions and show it. Partitions cannot be taken away.

    Keys hash differently afterwards, as in Kafka: new records of a key may go to another
    partition than its old ones.

    \b
    Example:
      txnlog topics add-partitions orders --to 12
    """
    changed = session.open_store(dry_run=dry_run).topics.alter(
        topic, partitions=to, dry_run=dry_run
    )
    print_topic(session.output, changed)
    note_dry_run(dry_run)
