"""``txnlog export``: a topic becomes partition folders of a Kafka broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import CompressionOption, FolderOptions
from txnlog.cli.input.storage_options import parse_storage_options
from txnlog.cli.output.fields import Field, number, size, text
from txnlog.cli.output.progress import progress_bar
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.kafka.export_log_dirs import ExportedPartition, KafkaExport


TOTAL: list[Field[KafkaExport]] = [
    text("topic", "TOPIC", lambda done: done.topic),
    text("url", "FOLDER", lambda done: done.url),
    number("record_count", "RECORDS", lambda done: done.record_count),
]


PARTITIONS: list[Field[ExportedPartition]] = [
    number("partition", "PART", lambda part: part.partition),
    text("folder", "FOLDER", lambda part: part.folder),
    number("start_offset", "START", lambda part: part.start_offset),
    number("end_offset", "END", lambda part: part.end_offset),
    number("record_count", "RECORDS", lambda part: part.record_count),
    number("marker_count", "MARKERS", lambda part: part.marker_count),
    number("segment_count", "SEGMENTS", lambda part: part.segment_count),
    size("size_bytes", "BYTES", lambda part: part.size_bytes),
]


def export_folders(
    session: Session,
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
) -> None:
    """Export a topic as partition folders that Kafka's tools read.

    A marker follows each transaction and takes an offset, so offsets grow by one for each
    MARKER before them. With --keep-offsets there are none: committed records become plain ones
    with their own offsets, aborted ones are left out.

    \b
    Example:
      txnlog export orders /tmp/kafka-logs --kafka
    """
    with progress_bar("exporting") as progress:
        done = session.open_to_read().kafka.export_topic(
            topic,
            directory,
            magic=magic,
            keep_offsets=keep_offsets,
            compression_type=None if compression is None else compression.value,
            storage_options=parse_storage_options(folder_option or (), "--folder-option"),
            progress=progress,
        )
    with session.output.document() as document:
        document.fields(TOTAL, done)
        document.rows("partitions", "Partitions", PARTITIONS, done.partitions)
