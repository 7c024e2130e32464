"""``txnlog topics delete``: a topic goes with all its records."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.options import DryRunOption, TopicArgument, YesOption
from txnlog.cli.output.confirmation import confirm, note_dry_run
from txnlog.cli.output.topic_fields import print_topic
from txnlog.cli.session import Session
from txnlog.errors import UnknownTopicOrPartition


def delete_topic(
    session: Session,
    topic: TopicArgument,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="A topic that does not exist is not a failure.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete a topic with all its records, and show what it was. There is no way back.

    Asks first on a terminal; elsewhere it needs --yes. What is open in it is lost with it.

    \b
    Example:
      txnlog topics delete orders --dry-run
      txnlog topics delete orders --yes
    """
    opened = session.open_store(dry_run=dry_run)

    try:
        doomed = opened.topics.describe(topic)
    except UnknownTopicOrPartition:
        if not if_exists:
            raise
        return
    if not dry_run:
        what = f"delete topic {topic} with {doomed.offset_count} records"
        confirm(f"{what} in {doomed.segment_count} segments", yes=yes)
        opened.topics.delete(topic, topic_id=doomed.topic_id)  # not one that is made meanwhile
    print_topic(session.output, doomed)
    note_dry_run(dry_run)
