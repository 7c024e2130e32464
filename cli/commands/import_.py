"""``txnlog import``: partition folders of a Kafka broker become a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import FolderOptions
from txnlog.cli.input.storage_options import parse_storage_options
from txnlog.cli.output.fields import Field, number, size, text
from txnlog.cli.output.progress import progress_bar
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.kafka.import_log_dirs import DamagedBytes, ImportedPartition, KafkaImport


TOTAL: list[Field[KafkaImport]] = [
    text("topic", "TOPIC", lambda done: done.topic),
    number("record_count", "RECORDS", lambda done: done.record_count),
]


PARTITIONS: list[Field[ImportedPartition]] = [
    number("partition", "PART", lambda part: part.partition),
    number("start_offset", "START", lambda part: part.start_offset),
    number("end_offset", "END", lambda part: part.end_offset),
    number("record_count", "RECORDS", lambda part: part.record_count),
    number("segment_count", "SEGMENTS", lambda part: part.segment_count),
    size("size_bytes", "BYTES", lambda part: part.size_bytes),
    number("aborted_count", "ABORTED TXNS", lambda part: part.aborted_count),
    number("open_count", "OPEN TXNS", lambda part: len(part.open_transactions)),
]


DAMAGES: list[Field[DamagedBytes]] = [
    text("path", "PATH", lambda damage: damage.path),
    number("position", "POSITION", lambda damage: damage.position),
    number("size_bytes", "BYTES", lambda damage: damage.size_bytes),
    text("reason", "REASON", lambda damage: damage.reason),
]


def import_folders(
    session: Session,
    log_dirs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOGDIR", help="Partition folders such as orders-0, or what holds them."
        ),
    ],
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Into which topic.")],
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Leave damaged batches out, and say which.")
    ] = False,
    folder_option: FolderOptions = None,
) -> None:
    """Import partition folders of a stopped Kafka broker. Copies will do. All or nothing.

    Each batch is checked and copied as it is: offsets, timestamps and headers stay, and what
    Kafka has aborted stays aborted. OPEN TXNS had not ended and count as aborted. The topic is
    created if there is none of this name.

    \b
    Example:
      txnlog import /var/kafka/data/orders-* --topic orders
    """
    with progress_bar("importing") as progress:
        done = session.open_store().kafka.import_topic(
            topic,
            log_dirs,
            skip_corrupt=skip_corrupt,
            storage_options=parse_storage_options(folder_option or (), "--folder-option"),
            progress=progress,
        )
    for damage in done.damages:
        warn(f"left out: {damage.reason}")
    with session.output.document() as document:
        document.fields(TOTAL, done)
        document.rows("partitions", "Partitions", PARTITIONS, done.partitions)
        document.rows("damages", "Left out", DAMAGES, done.damages)
