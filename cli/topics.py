"""``txnlog topics``: list, describe and create topics."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.damage import Reporter
from txnlog.cli.fields import Field, Json, number, text, time
from txnlog.cli.grammar import HELP_NAMES, parse_config
from txnlog.cli.owners import owner_fields
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.cli.output import Output
    from txnlog.descriptions import PartitionDescription, TopicDescription

app = typer.Typer(
    help="Topics: what they hold and how they are set.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


def _records(topic: TopicDescription) -> int:
    return sum(part.end_offset - part.log_start_offset for part in topic.partitions)


SUMMARY: list[Field[TopicDescription]] = [
    text("topic", "TOPIC", lambda topic: topic.topic),
    number("partition_count", "PARTITIONS", lambda topic: len(topic.partitions)),
    number("record_count", "RECORDS", _records),
    number("size_bytes", "BYTES", lambda topic: topic.size_bytes),
    number("entries", "ENTRIES", lambda topic: topic.entries),
]


def _config(topic: TopicDescription) -> Json:
    return dict(topic.config)


def _config_line(topic: TopicDescription) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(topic.config.items())) or "defaults"


DETAILS: list[Field[TopicDescription]] = [
    *SUMMARY,
    text("topic_id", "TOPIC ID", lambda topic: topic.topic_id),
    time("created_at_ms", "CREATED", lambda topic: topic.created_at_ms),
    Field("config", "CONFIG", _config, _config_line),
]

PARTITIONS: list[Field[PartitionDescription]] = [
    number("partition", "PARTITION", lambda part: part.partition),
    number("log_start_offset", "START", lambda part: part.log_start_offset),
    number("last_stable_offset", "STABLE", lambda part: part.last_stable_offset),
    number("end_offset", "END", lambda part: part.end_offset),
    number("segment_count", "SEGMENTS", lambda part: part.segment_count),
    number("size_bytes", "BYTES", lambda part: part.size_bytes),
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
    offsets are counted. ENTRIES is the length of the topic's log.

    \b
    Example:
      txnlog topics ls --store /data/store
    """
    session = open_session(ctx, store, storage_option, output)
    with Reporter() as reporter:
        session.output.rows(SUMMARY, reporter.healthy(session.open_store().describe_topics()))


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
    given. CONFIG shows what differs from the defaults.

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
    created = session.open_store().create_topic(topic, partitions=partitions, config=settings)
    _print_topic(session.output, created)


def _print_topic(output: Output, topic: TopicDescription) -> None:
    with output.document() as document:
        document.fields(DETAILS, topic)
        document.rows("partitions", "Partitions", PARTITIONS, topic.partitions)
        document.rows(
            "open_transactions", "Open transactions", owner_fields(), topic.open_transactions
        )
