"""``txnlog records``: read what is in a topic."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.grammar import HELP_NAMES, Offset, Place, Target, Time, parse_place, parse_target
from txnlog.cli.record_fields import RECORD, Record, scan_records
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    from txnlog.scan import Scan
    from txnlog.snapshot import Snapshot
    from txnlog.store import Store

app = typer.Typer(
    help="Records: what is in a topic.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
)


@app.callback()
def records() -> None:
    """Records: what is in a topic."""


class Isolation(str, Enum):
    """Kafka's isolation levels."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


@app.command("read")
def read_records(
    ctx: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TOPIC[:PARTITION]", help="A topic or one partition of it.")
    ],
    from_: Annotated[
        str,
        typer.Option(
            "--from", metavar="PLACE", help="Where to begin: earliest, latest, 42, @time."
        ),
    ] = "earliest",
    to: Annotated[
        str,
        typer.Option("--to", metavar="PLACE", help="Where to end; that offset is not read."),
    ] = "latest",
    max_records: Annotated[
        int | None,
        typer.Option("-n", "--max-records", min=0, help="At most so many.", show_default=False),
    ] = None,
    isolation_level: Annotated[
        Isolation,
        typer.Option("--isolation-level", help="read_uncommitted shows aborted records too."),
    ] = Isolation.COMMITTED,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Read records, one a line, partition by partition in the order of their offsets.

    A PLACE is earliest, latest, an offset, or the first record at or after a time: @ and
    milliseconds, or @ and ISO 8601 (UTC if it has no zone). Without a partition it is taken
    in each, and an offset that lies outside of one begins or ends there at its edge.

    Bytes are shown as UTF-8; what is not is \\xNN, and \\N is null. In JSON it is
    {"base64": "..."}. Use -o jsonl in pipes.

    \b
    Example:
      txnlog records read orders:0 --from 100 --to 200
      txnlog records read orders --from @2024-05-01T12:00 -n 10 -o jsonl
    """
    where, start, end = parse_target(target), parse_place(from_), parse_place(to)
    session = open_session(ctx, store, storage_option, output)
    opened = session.open_store()
    snapshot = opened.snapshot([where.topic], isolation_level=isolation_level.value)
    scan = _plan(snapshot, where, start, end)
    session.output.rows(RECORD, _read(opened, scan, max_records), streamed=True)


def _read(store: Store, scan: Scan, max_records: int | None) -> Iterator[Record]:
    from txnlog.scan import read_range

    def records() -> Iterator[Record]:
        for part in scan.ranges:
            for batch in read_range(store.storage, part, scan.columns):
                yield from scan_records(batch)

    return islice(records(), max_records)


def _plan(snapshot: Snapshot, where: Target, start: Place, end: Place) -> Scan:
    from txnlog.scan import EARLIEST

    partitions = snapshot.partitions(where.topic)
    if where.partition is None:
        chosen = partitions
    else:
        _check_partition(where, len(partitions))
        chosen = [where.partition]
    starts = {number: _offset(snapshot, where, number, start) for number in chosen}
    ends = dict.fromkeys(partitions, EARLIEST)
    for number in chosen:
        # Where the end lies before the beginning there is simply nothing to read.
        ends[number] = max(_offset(snapshot, where, number, end), starts[number])
    return snapshot.scan(where.topic, starts, ends)


def _offset(snapshot: Snapshot, where: Target, partition: int, place: Place) -> int:
    """The offset of a place in one partition."""
    from txnlog.names import TopicPartition

    first = snapshot.beginning_offsets(where.topic)[partition]
    last = snapshot.end_offsets(where.topic)[partition]
    match place:
        case "earliest":
            return first
        case Offset(offset):
            # Named alone, a partition is held to what it has: the library refuses what it has not.
            return offset if where.partition is not None else min(max(offset, first), last)
        case Time(timestamp_ms):
            found = snapshot.offset_for_time(TopicPartition(where.topic, partition), timestamp_ms)
            return last if found is None else found.offset
        case _:
            return last


def _check_partition(where: Target, count: int) -> None:
    from txnlog.errors import UnknownTopicOrPartition

    if where.partition is not None and where.partition >= count:
        raise UnknownTopicOrPartition(
            f"topic {where.topic!r} has no partition {where.partition}; "
            f"it has {count}, numbered from 0"
        )
