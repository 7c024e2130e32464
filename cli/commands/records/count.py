"""``txnlog records count``: how many records a range has."""

from __future__ import annotations

from dataclasses import dataclass

from txnlog.cli.input.options import TargetArgument
from txnlog.cli.input.places import parse_target
from txnlog.cli.input.record_options import (
    AsOfOption,
    FromOption,
    Isolation,
    IsolationOption,
    LatestOption,
    RangeOption,
    SkipDamagedOption,
    ToOption,
    join_range,
    parse_moment,
)
from txnlog.cli.input.scan_plan import plan_scan
from txnlog.cli.output.damage import DamageReporter
from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.session import Session


@dataclass(frozen=True, slots=True)
class CountedPartition:
    """How many records a range of a partition has."""

    partition: int
    start_offset: int
    end_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class Counted:
    """How many records a range of a topic has."""

    topic: str
    parts: list[CountedPartition]


TOTAL: list[Field[Counted]] = [
    text("topic", "TOPIC", lambda counted: counted.topic),
    number("record_count", "RECORDS", lambda counted: sum(p.record_count for p in counted.parts)),
]


PARTITIONS: list[Field[CountedPartition]] = [
    number("partition", "PART", lambda part: part.partition),
    number("start_offset", "START", lambda part: part.start_offset),
    number("end_offset", "END", lambda part: part.end_offset),
    number("record_count", "RECORDS", lambda part: part.record_count),
]


def count_records(
    session: Session,
    target: TargetArgument,
    offset: RangeOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    as_of: AsOfOption = None,
    isolation_level: IsolationOption = Isolation.COMMITTED,
    skip_damaged: SkipDamagedOption = False,
    latest: LatestOption = False,
) -> None:
    """Count the records that a read would show. Few segments are read for it.

    They are those that came from Kafka, and compacted ones that a range cuts through. END minus
    START can be more than RECORDS: aborted records are not counted, unless the isolation level is
    read_uncommitted. With --skip-damaged everything is read: what is damaged is not counted. With
    --latest keys are counted, each in the partition of its newest record.

    \b
    Example:
      txnlog records count orders
      txnlog records count orders --latest
      txnlog records count orders --offset @-24h
    """
    where, chosen = parse_target(target), join_range(offset, from_, to)
    snapshot = session.open_to_read().snapshot(
        [where.topic], isolation_level=isolation_level.value, at=parse_moment(as_of)
    )
    scan = plan_scan(snapshot, where, chosen, latest=latest)
    partitions = snapshot.partitions(where.topic) if where.partition is None else [where.partition]
    report = DamageReporter().report_records(skip=True) if skip_damaged else None
    counts = scan.count(report=report)
    counted = Counted(
        where.topic,
        [
            CountedPartition(p, scan.start_offsets[p], scan.end_offsets[p], counts[p])
            for p in partitions
        ],
    )
    with session.output.document() as document:
        document.fields(TOTAL, counted)
        document.rows("partitions", "Partitions", PARTITIONS, counted.parts)
