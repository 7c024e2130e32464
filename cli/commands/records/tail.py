"""``txnlog records head`` and ``tail``: the oldest and the newest records, and those that come."""

# ruff: noqa: D301 - the help keeps lines as they are after a real backspace
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.places import Target, parse_target
from txnlog.cli.input.ranges import Range
from txnlog.cli.input.record_options import (
    TEMPLATE_HELP,
    EncodingOption,
    Isolation,
    IsolationOption,
    TargetArgument,
    make_template,
    plan_scan,
    print_records,
)
from txnlog.cli.output.output import flush, warn
from txnlog.cli.output.record_fields import Encoding, Record, consumed_record, scan_records
from txnlog.cli.session import OutputOption, StorageOptions, StoreOption, open_session

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.consumer import Consumer
    from txnlog.scan import Scan
    from txnlog.store import Store

_PATIENCE_S = 60.0
"""A storage that fails for longer ends a follower."""

CountOption = Annotated[int, typer.Option("-n", "--max-records", min=0, help="At most so many.")]
LongFormatOption = Annotated[
    str | None,
    typer.Option("--format", metavar="TEMPLATE", help=TEMPLATE_HELP, show_default=False),
]


def head_records(
    ctx: typer.Context,
    target: TargetArgument,
    max_records: CountOption = 10,
    isolation_level: IsolationOption = Isolation.COMMITTED,
    encoding: EncodingOption = Encoding.TEXT,
    template: LongFormatOption = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show the oldest records of a topic, over all partitions in the order of their times.

    Up to so many records of each partition are held in memory: for many use `records read`.

    \b
    Example:
      txnlog records head orders -n 3
    """
    where, layout = parse_target(target), make_template(template)
    session = open_session(ctx, store, storage_option, output)
    scan = _scan(session.open_store(), where, isolation_level)[0]
    print_records(session.output, _rows(scan.head(max_records)), encoding, layout)


def tail_records(
    ctx: typer.Context,
    target: TargetArgument,
    max_records: CountOption = 10,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with records that come; Ctrl-C ends it.")
    ] = False,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="SECONDS", min=0.05, help="How often to look for more."),
    ] = 1.0,
    isolation_level: IsolationOption = Isolation.COMMITTED,
    encoding: EncodingOption = Encoding.TEXT,
    template: LongFormatOption = None,
    store: StoreOption = None,
    storage_option: StorageOptions = None,
    output: OutputOption = None,
) -> None:
    """Show the newest records of a topic, over all partitions in the order of their times.

    With --follow it goes on with what is committed from then on; each look is one listing of
    the topic's log. Up to -n records of each partition are held in memory.

    \b
    Example:
      txnlog records tail orders -n 3
      txnlog records tail orders -n 0 --follow -o jsonl
    """
    where, layout = parse_target(target), make_template(template)
    if follow and isolation_level is Isolation.SNAPSHOT:
        raise typer.BadParameter(
            "--isolation-level snapshot cannot be followed: what is decided later shows below what "
            "was shown; leave --follow out, or take read_committed"
        )
    session = open_session(ctx, store, storage_option, output)
    opened = session.open_store()
    scan, ends = _scan(opened, where, isolation_level)
    records = _rows(scan.tail(max_records))
    if follow:
        consumer = _consumer(opened, where, ends, isolation_level)
        records = chain(records, _follow(consumer, interval))
    print_records(session.output, records, encoding, layout, live=follow)


def _scan(store: Store, where: Target, isolation_level: Isolation) -> tuple[Scan, dict[int, int]]:
    """All of a topic or partition as it is now, and where it ends."""
    snapshot = store.snapshot([where.topic], isolation_level=isolation_level.value)
    scan = plan_scan(snapshot, where, Range("earliest", "latest"))
    ends = snapshot.end_offsets(where.topic)
    return scan, {p: end for p, end in ends.items() if where.partition in (None, p)}


def _rows(table: pa.Table) -> Iterator[Record]:
    for batch in table.to_batches():
        yield from scan_records(batch)


def _consumer(
    store: Store, where: Target, ends: dict[int, int], isolation_level: Isolation
) -> Consumer:
    from txnlog.names import TopicPartition

    consumer = store.consumer(isolation_level=isolation_level.value, auto_offset_reset="earliest")
    if where.partition is None:
        consumer.subscribe([where.topic])
    else:
        consumer.assign([TopicPartition(where.topic, where.partition)])
    for number, end in ends.items():
        consumer.seek(TopicPartition(where.topic, number), end)
    return consumer


def _follow(
    consumer: Consumer, interval_s: float, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Record]:
    """What comes, for ever. Raises what the consumer raises, StorageError after a minute of it."""
    from txnlog.errors import StorageError

    failing_since_s: float | None = None
    while True:
        flush()
        try:
            records = consumer.poll()
        except StorageError as error:
            now_s = time.monotonic()
            if failing_since_s is None:
                warn(f"{error}; trying again")
                failing_since_s = now_s
            if not error.retriable or now_s - failing_since_s > _PATIENCE_S:
                raise
            records = []
        else:
            failing_since_s = None
        for record in records:
            yield consumed_record(record)
        if not records:
            sleep(interval_s)
