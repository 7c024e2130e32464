"""``txnlog records head`` and ``tail``: the oldest records, or the newest and those that come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.options import IntervalOption, TargetArgument
from txnlog.cli.input.places import EVERYTHING, Target, parse_target
from txnlog.cli.input.record_options import (
    Encoding,
    EncodingOption,
    Isolation,
    IsolationOption,
    MaxRecordsOption,
    SkipDamagedOption,
    TemplateOption,
)
from txnlog.cli.input.scan_plan import plan_scan
from txnlog.cli.input.value_options import ValueChoice
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.decoded_text import DecodedText
from txnlog.cli.output.record_fields import Record, convert_consumed, read_scanned
from txnlog.cli.output.record_template import RecordPrinter
from txnlog.cli.output.streams import flush
from txnlog.cli.output.watch import Patience
from txnlog.cli.session import Session
from txnlog.errors import StorageError

if TYPE_CHECKING:
    import pyarrow as pa

    from txnlog.config import OnCorrupt
    from txnlog.consumer import Consumer
    from txnlog.results import DamagedRecords
    from txnlog.scan import Scan
    from txnlog.snapshot import Snapshot
    from txnlog.store import Store


def head_records(
    session: Session,
    target: TargetArgument,
    max_records: MaxRecordsOption = 10,
    isolation_level: IsolationOption = Isolation.COMMITTED,
    encoding: EncodingOption = Encoding.TEXT,
    template: TemplateOption = None,
    skip_damaged: SkipDamagedOption = False,
    values: ValueChoice | None = None,
) -> None:
    """Show the oldest records of all partitions, by their times.

    Up to this many records of each partition are held in memory: for many use `records read`.
    --value-format shows the fields of values, as it does there.

    \b
    Example:
      txnlog records head orders -n 3
    """
    printer = RecordPrinter.of(encoding, template)
    _show(
        session,
        target,
        lambda found, report: found.head(max_records, report=report),
        isolation_level,
        printer,
        skip_damaged,
        values,
    )


def tail_records(
    session: Session,
    target: TargetArgument,
    max_records: MaxRecordsOption = 10,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with records that come; Ctrl-C ends it.")
    ] = False,
    interval: IntervalOption = 1.0,
    isolation_level: IsolationOption = Isolation.COMMITTED,
    encoding: EncodingOption = Encoding.TEXT,
    template: TemplateOption = None,
    skip_damaged: SkipDamagedOption = False,
    values: ValueChoice | None = None,
) -> None:
    """Show the newest records of all partitions, by their times.

    With --follow it goes on with what is committed from then on; each look is one listing of
    the topic's log. Up to -n records of each partition are held in memory.
    --value-format shows the fields of values, as `records read` does.

    \b
    Example:
      txnlog records tail orders -n 3
      txnlog records tail orders -n 0 --follow -o jsonl
    """
    if follow and isolation_level is Isolation.SNAPSHOT:
        raise typer.BadParameter(
            "--isolation-level snapshot cannot be followed: what is decided later shows below what "
            "was shown; leave --follow out, or take read_committed"
        )
    printer = RecordPrinter.of(encoding, template)
    _show(
        session,
        target,
        lambda found, report: found.tail(max_records, report=report),
        isolation_level,
        printer,
        skip_damaged,
        values,
        interval if follow else None,
    )


def _show(
    session: Session,
    target: str,
    choose: Callable[[Scan, Callable[[DamagedRecords], None]], pa.Table],
    isolation_level: Isolation,
    printer: RecordPrinter,
    skip_damaged: bool,
    values: ValueChoice | None,
    interval_s: float | None = None,
) -> None:
    """Print the records that ``choose`` leaves of a topic; with an interval go on with new ones."""
    where, opened = parse_target(target), session.open_to_read()
    snapshot = opened.snapshot([where.topic], isolation_level=isolation_level.value)
    decoded = DecodedText.of(values, opened, where.topic)
    with DamageReporter() as reporter:
        report = reporter.report_records(skip_damaged)
        found = choose(plan_scan(snapshot, where, EVERYTHING), report)
        batches: Iterable[pa.RecordBatch] = found.to_batches()
        if decoded is not None:
            batches = decoded.texts(batches)
        records = read_scanned(batches)
        if interval_s is not None:
            on_corrupt: OnCorrupt = "skip" if skip_damaged else "raise"
            consumer = _start_consumer(
                opened, where, snapshot, isolation_level, on_corrupt, decoded
            )
            records = chain(records, _follow(consumer, interval_s))
        printer.print(session.output, records, live=interval_s is not None)
    if decoded is not None:
        decoded.summary()


def _start_consumer(
    store: Store,
    where: Target,
    snapshot: Snapshot,
    isolation_level: Isolation,
    on_corrupt: OnCorrupt,
    decoded: DecodedText | None,
) -> Consumer:
    from txnlog.names import TopicPartition
    from txnlog.read.isolation_levels import check_reading_on

    level = check_reading_on(isolation_level.value)
    consumer = store.consumer(
        isolation_level=level,
        auto_offset_reset="earliest",
        on_corrupt=on_corrupt,
        as_json=True,
        value_deserializer=None if decoded is None else decoded.text,
    )
    if where.partition is None:
        consumer.subscribe([where.topic])
    else:
        consumer.assign([TopicPartition(where.topic, where.partition)])
    view = snapshot.view(where.topic)
    if store.snapshot(where.topic).view(where.topic).topic_id != view.topic_id:
        return consumer  # it was made anew, so nothing of it has been shown
    for number, end in view.end_offsets.items():
        if where.partition in (None, number):
            consumer.seek(TopicPartition(where.topic, number), end)
    return consumer


def _follow(
    consumer: Consumer, interval_s: float, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Record]:
    """New records, for ever. Raises what the consumer raises; a StorageError after a minute."""
    patience = Patience()
    while True:
        flush()
        try:
            records = consumer.poll()
        except StorageError as error:
            patience.bear(error)
            records = []
        else:
            patience.end()
        for record in records:
            yield convert_consumed(record)
        if not records:
            sleep(interval_s)
