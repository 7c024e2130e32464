"""``txnlog topics create``: a new topic, with its settings and columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.assignments import parse_settings
from txnlog.cli.input.columns import DefaultOption, parse_defaults, parse_schema, split_names
from txnlog.cli.input.options import DryRunOption, NewTopicArgument, SettingsOption
from txnlog.cli.input.value_options import parse_subject
from txnlog.cli.output.confirmation import note_dry_run
from txnlog.cli.output.topic_fields import print_topic
from txnlog.cli.session import Session
from txnlog.errors import TopicAlreadyExists

if TYPE_CHECKING:
    from txnlog.columns.schema_words import WrittenColumns
    from txnlog.values import SubjectColumns


def create_topic(
    session: Session,
    topic: NewTopicArgument,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="How many.")] = 1,
    config: SettingsOption = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="COLUMNS|FILE",
            help="Columns of a typed topic: in SQL's words, or a file that has or describes them.",
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            metavar="SUBJECT[:VERSION]",
            help="Columns of a schema of `txnlog schemas ls` instead.",
        ),
    ] = None,
    message: Annotated[
        str | None,
        typer.Option(
            "--message",
            metavar="NAME",
            help="With --subject, of a .proto: which message; the first if left out.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="COLUMN,...", help="Columns that are the key."),
    ] = None,
    default: DefaultOption = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            metavar="N",
            help="At how many roots its data is, of a store with replicas.",
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="If the topic exists, show it as it is.")
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Create a topic in an existing store and show it.

    With --schema its records have columns: 'name type [not null] [default value], ...' with the
    types of SQL, Spark or Arrow; a Parquet or Arrow file, whose columns they become; or a file with
    such words, or with the JSON of a schema of Avro, Spark or Arrow.

    \b
    Example:
      txnlog topics create orders --partitions 8 --config compression.type=zstd
      txnlog topics create flights --key carrier,flight \\
          --schema 'carrier string not null, flight int, gate string default "?"'
    """
    settings = parse_settings(config or ())
    if schema is None and subject is None and (key is not None or default):
        raise typer.BadParameter("--key and --default are for columns: they need --schema")
    if schema is not None and subject is not None:
        raise typer.BadParameter("--schema and --subject both say the columns: name one")
    if message is not None and subject is None:
        raise typer.BadParameter("--message is for the schema of a --subject")
    keys = split_names([key]) if key else None
    written: WrittenColumns | SubjectColumns | None = None
    if schema is not None:
        written = parse_schema(schema)
    opened = session.open_store(dry_run=dry_run)
    if subject is not None:
        from txnlog.values import subject_columns

        written = subject_columns(opened.schemas, *parse_subject(subject), message=message)
    columns = defaults = None
    if written is not None:
        columns = written.columns
        known = {
            name: value for name, value in written.defaults.items() if name not in (keys or ())
        }
        defaults = {**known, **parse_defaults(default or (), columns)} or None

    try:
        shown = opened.topics.create(
            topic,
            partitions=partitions,
            config=settings,
            schema=columns,
            key=keys,
            defaults=defaults,
            replication_factor=replication_factor,
            dry_run=dry_run,
        )
    except TopicAlreadyExists:
        if not if_not_exists:
            raise
        shown = opened.topics.describe(topic)
    print_topic(session.output, shown)
    note_dry_run(dry_run)
