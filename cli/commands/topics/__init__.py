"""``txnlog topics``: list, describe, create, grow and delete topics."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.places import HELP_NAMES, parse_config
from txnlog.cli.output.confirmation import DryRunOption, YesOption, require_consent, tell_dry_run
from txnlog.cli.output.damage import Reporter
from txnlog.cli.output.fields import Field, Json, names, number, text, time
from txnlog.cli.output.transaction_refs import owner_fields
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.cli.output.output import Output
    from txnlog.inspect.descriptions import PartitionDescription, TopicDescription

app = typer.Typer(
    help="Topics: what they hold and how they are set.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]

SUMMARY: list[Field[TopicDescription]] = [
    text("topic", "TOPIC", lambda topic: topic.topic),
    number("partition_count", "PARTITIONS", lambda topic: len(topic.partitions)),
    number("record_count", "RECORDS", lambda topic: topic.offset_count),
    number("segment_count", "SEGMENTS", lambda topic: topic.segment_count),
    number("size_bytes", "BYTES", lambda topic: topic.size_bytes),
    number("entries", "ENTRIES", lambda topic: topic.entries, wide=True),
    text("compression_type", "CODEC", lambda topic: topic.compression_type),
    number("open_transaction_count", "OPEN", lambda topic: len(topic.open_transactions)),
]


def _config(topic: TopicDescription) -> Json:
    return dict(topic.config)


def _config_line(topic: TopicDescription) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(topic.config.items())) or "defaults"


def _open_ids(part: PartitionDescription) -> list[str]:
    return [ref.transactional_id for ref in part.open_transactions]


DETAILS: list[Field[TopicDescription]] = [
    *SUMMARY,
    text("topic_id", "TOPIC ID", lambda topic: topic.topic_id),
    time("created_at_ms", "CREATED", lambda topic: topic.created_at_ms),
    Field("config", "CONFIG", _config, _config_line),
]

PARTITIONS: list[Field[PartitionDescription]] = [
    number("partition", "PART", lambda part: part.partition),
    number("log_start_offset", "START", lambda part: part.log_start_offset),
    number("last_stable_offset", "STABLE", lambda part: part.last_stable_offset),
    number("end_offset", "END", lambda part: part.end_offset),
    number("segment_count", "SEGMENTS", lambda part: part.segment_count),
    number("size_bytes", "BYTES", lambda part: part.size_bytes),
    names("open_transactions", "OPEN", _open_ids),
]


@app.command("ls")
def list_topics(
    ctx: typer.Context,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """List topics with their sizes.

    RECORDS is the sum of end minus start offsets: aborted records that still take up
    offsets are counted. ENTRIES is the length of the topic's log, OPEN counts the
    transactions that are not decided.

    \b
    Example:
      txnlog topics ls --store /data/store
    """
    session = open_session(ctx, store, storage_option, output)
    with Reporter() as reporter:
        session.output.rows(SUMMARY, reporter.healthy(session.open_store().each_topic()))


@app.command("describe")
def describe_topic(
    ctx: typer.Context,
    topic: TopicArgument,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show offsets, sizes, settings and open transactions of a topic.

    START is the first offset, STABLE where read_committed stops, END the next offset to be
    given, OPEN whose transactions are open there. CONFIG shows what differs from the
    defaults; `topics config get` shows all.

    \b
    Example:
      txnlog topics describe orders
    """
    session = open_session(ctx, store, storage_option, output)
    _print_topic(session.output, session.open_store().describe_topic(topic))


@app.command("create")
def create_topic(
    ctx: typer.Context,
    topic: TopicArgument,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="How many.")] = 1,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="KEY=VALUE",
            help="A setting with Kafka's name; may be repeated.",
            show_default=False,
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Show a topic that exists as it is.")
    ] = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Create a topic in an existing store and show it.

    \b
    Example:
      txnlog topics create orders --partitions 8 --config compression.type=zstd
    """
    settings = parse_config(config or ())
    session = open_session(ctx, store, storage_option, output)
    opened = session.open_store()
    from txnlog.errors import TopicAlreadyExists

    try:
        shown = opened.create_topic(topic, partitions=partitions, config=settings, dry_run=dry_run)
    except TopicAlreadyExists:
        if not if_not_exists:
            raise
        shown = opened.describe_topic(topic)
    _print_topic(session.output, shown)
    tell_dry_run(dry_run)


@app.command("add-partitions")
def add_partitions(
    ctx: typer.Context,
    topic: TopicArgument,
    to: Annotated[int, typer.Option("--to", min=1, help="How many there are to be in all.")],
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Give a topic more partitions and show it. Partitions cannot be taken away.

    Keys hash differently afterwards, as in Kafka: new records of a key may go to another
    partition than its old ones.

    \b
    Example:
      txnlog topics add-partitions orders --to 12
    """
    session = open_session(ctx, store, storage_option, output)
    changed = session.open_store().alter_topic(topic, partitions=to, dry_run=dry_run)
    _print_topic(session.output, changed)
    tell_dry_run(dry_run)


@app.command("delete")
def delete_topic(
    ctx: typer.Context,
    topic: TopicArgument,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="A topic that does not exist is no failure.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Delete a topic with all its records, and show what it was. There is no way back.

    Asks first on a terminal; elsewhere it needs --yes. What is open in it is lost with it.

    \b
    Example:
      txnlog topics delete orders --dry-run
      txnlog topics delete orders --yes
    """
    session = open_session(ctx, store, storage_option, output)
    opened = session.open_store()
    from txnlog.errors import UnknownTopicOrPartition

    try:
        doomed = opened.describe_topic(topic)
    except UnknownTopicOrPartition:
        if not if_exists:
            raise
        return
    if not dry_run:
        what = f"delete topic {topic} with {doomed.offset_count} records"
        require_consent(f"{what} in {doomed.segment_count} segments", yes=yes)
        opened.delete_topic(topic)
    _print_topic(session.output, doomed)
    tell_dry_run(dry_run)


def _print_topic(output: Output, topic: TopicDescription) -> None:
    with output.document() as document:
        document.fields(DETAILS, topic)
        document.rows("partitions", "Partitions", PARTITIONS, topic.partitions)
        document.rows(
            "open_transactions", "Open transactions", owner_fields(), topic.open_transactions
        )
