"""``txnlog import`` and ``txnlog export``: partition folders of a Kafka broker, in and out."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import CompressionOption
from txnlog.cli.input.places import HELP_NAMES
from txnlog.cli.input.storage_options import parse_storage_options
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.output.output import warn
from txnlog.cli.output.progress import progress_bar
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.kafka.exporting import ExportedPartition, KafkaExport
    from txnlog.kafka.importing import DamagedBytes, ImportedPartition, KafkaImport

app = typer.Typer(rich_markup_mode=None, context_settings=HELP_NAMES)

IMPORT: list[Field[KafkaImport]] = [
    text("topic", "TOPIC", lambda done: done.topic),
    number("record_count", "RECORDS", lambda done: done.record_count),
]
IMPORTED: list[Field[ImportedPartition]] = [
    number("partition", "PART", lambda part: part.partition),
    number("start_offset", "START", lambda part: part.start_offset),
    number("end_offset", "END", lambda part: part.end_offset),
    number("record_count", "RECORDS", lambda part: part.record_count),
    number("segment_count", "SEGMENTS", lambda part: part.segment_count),
    number("size_bytes", "BYTES", lambda part: part.size_bytes),
    number("aborted_count", "ABORTED TXNS", lambda part: part.aborted_count),
    number("open_count", "OPEN TXNS", lambda part: len(part.open_transactions)),
]
DAMAGES: list[Field[DamagedBytes]] = [
    text("path", "PATH", lambda damage: damage.path),
    number("position", "POSITION", lambda damage: damage.position),
    number("size_bytes", "BYTES", lambda damage: damage.size_bytes),
    text("reason", "REASON", lambda damage: damage.reason),
]
EXPORT: list[Field[KafkaExport]] = [
    text("topic", "TOPIC", lambda done: done.topic),
    text("url", "FOLDER", lambda done: done.url),
    number("record_count", "RECORDS", lambda done: done.record_count),
]
EXPORTED: list[Field[ExportedPartition]] = [
    number("partition", "PART", lambda part: part.partition),
    text("folder", "FOLDER", lambda part: part.folder),
    number("start_offset", "START", lambda part: part.start_offset),
    number("end_offset", "END", lambda part: part.end_offset),
    number("record_count", "RECORDS", lambda part: part.record_count),
    number("marker_count", "MARKERS", lambda part: part.marker_count),
    number("segment_count", "SEGMENTS", lambda part: part.segment_count),
    number("size_bytes", "BYTES", lambda part: part.size_bytes),
]

FolderOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--folder-option",
        metavar="KEY=VALUE",
        help="Option for the filesystem of Kafka's folders; may be repeated. Never shown.",
        show_default=False,
    ),
]


@app.command("import")
def import_folders(
    ctx: typer.Context,
    log_dirs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOGDIR", help="Partition folders such as orders-0, or what holds them."
        ),
    ],
    topic: Annotated[
        str, typer.Option("--topic", metavar="TOPIC", help="Into which topic.", show_default=False)
    ],
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Leave damaged batches out, and say which.")
    ] = False,
    folder_option: FolderOptions = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Import partition folders of a stopped Kafka broker, or copies of them. All or nothing.

    Each batch is checked and copied as it is: offsets, timestamps and headers stay, and what
    Kafka has aborted stays aborted. OPEN TXNS had not ended and count as aborted. The topic is
    created if there is none of this name.

    \b
    Example:
      txnlog import /var/kafka/data/orders-* --topic orders
    """
    session = open_session(ctx, store, storage_option, output)
    with progress_bar("importing") as progress:
        done = session.open_store().import_kafka(
            topic,
            log_dirs,
            skip_corrupt=skip_corrupt,
            storage_options=parse_storage_options(folder_option or (), "--folder-option"),
            progress=progress,
        )
    for damage in done.damages:
        warn(f"left out: {damage.reason}")
    with session.output.document() as document:
        document.fields(IMPORT, done)
        document.rows("partitions", "Partitions", IMPORTED, done.partitions)
        document.rows("damages", "Left out", DAMAGES, done.damages)


@app.command("export")
def export_folders(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Which topic.")],
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Where the partitions' folders are to be.")
    ],
    _kafka: Annotated[
        bool, typer.Option("--kafka", help="As folders of a Kafka broker: the only way so far.")
    ] = True,
    magic: Annotated[
        int,
        typer.Option(
            "--magic", min=0, max=2, help="Message format; 0 and 1 lose headers and transactions."
        ),
    ] = 2,
    keep_offsets: Annotated[
        bool,
        typer.Option(
            "--keep-offsets", help="Add no transaction markers, which would take offsets."
        ),
    ] = False,
    compression: CompressionOption = None,
    folder_option: FolderOptions = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Export a topic as partition folders that Kafka's own tools and brokers read.

    A marker follows each transaction and takes an offset, so offsets grow by one for each
    MARKER before them. With --keep-offsets there are none: committed records become plain ones
    with their own offsets, aborted ones are left out.

    \b
    Example:
      txnlog export orders /tmp/kafka-logs --kafka
    """
    session = open_session(ctx, store, storage_option, output)
    with progress_bar("exporting") as progress:
        done = session.open_store().export_kafka(
            topic,
            directory,
            magic=magic,
            keep_offsets=keep_offsets,
            compression_type=None if compression is None else compression.value,
            storage_options=parse_storage_options(folder_option or (), "--folder-option"),
            progress=progress,
        )
    with session.output.document() as document:
        document.fields(EXPORT, done)
        document.rows("partitions", "Partitions", EXPORTED, done.partitions)
