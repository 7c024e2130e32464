"""``txnlog topics create``: a new topic, with its settings."""

from __future__ import annotations

from typing import Annotated

import typer

from txnlog.cli.input.assignments import parse_settings
from txnlog.cli.input.options import DryRunOption, NewTopicArgument, SettingsOption
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.topic_fields import print_topic
from txnlog.cli.session import Session


def create_topic(
    session: Session,
    topic: NewTopicArgument,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="How many.")] = 1,
    config: SettingsOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="If the topic exists, show it as it is.")
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Create a topic in an existing store and show it.

    \b
    Example:
      txnlog topics create orders --partitions 8 --config compression.type=zstd
    """
    settings = parse_settings(config or ())
    opened = session.open_store()
    from txnlog.errors import TopicAlreadyExists

    try:
        shown = opened.create_topic(topic, partitions=partitions, config=settings, dry_run=dry_run)
    except TopicAlreadyExists:
        if not if_not_exists:
            raise
        shown = opened.describe_topic(topic)
    print_topic(session.output, shown)
    note_dry_run(dry_run)
