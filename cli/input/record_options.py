"""What the verbs of ``txnlog records`` that read have in common: which records, and how shown."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from txnlog.cli.input.places import Offset, Target, Time
from txnlog.cli.input.ranges import Bound, FromEnd, FromStart, Range
from txnlog.cli.output.output import write_bytes
from txnlog.cli.output.record_fields import Encoding, Record, record_fields
from txnlog.cli.output.record_template import Template

if TYPE_CHECKING:
    from txnlog.cli.output.output import Output
    from txnlog.scan import Scan
    from txnlog.snapshot import Snapshot


class Isolation(str, Enum):
    """Kafka's isolation levels, and one that files allow: docs/ISOLATION.md."""

    COMMITTED = "read_committed"
    SNAPSHOT = "snapshot"
    UNCOMMITTED = "read_uncommitted"


TargetArgument = Annotated[
    str, typer.Argument(metavar="TOPIC[:PARTITION]", help="A topic or one partition of it.")
]
IsolationOption = Annotated[
    Isolation,
    typer.Option(
        "--isolation-level",
        help="snapshot leaves only what is undecided out; read_uncommitted shows all.",
    ),
]
EncodingOption = Annotated[
    Encoding,
    typer.Option("--encoding", help="Keys, values and headers as text, hex or base64."),
]
RangeOption = Annotated[
    str | None,
    typer.Option(
        "--offset",
        metavar="RANGE",
        help="As kcat and rpk: start, -10, +10, 42:50, @TIME:TIME, @-1h.",
        show_default=False,
    ),
]
TEMPLATE_HELP = "Print this of each record: %t %p %o %k %v %h %d, \\n."


def make_template(template: str | None) -> Template | None:
    """The template that was given. Raises BadParameter."""
    # A terminal would obey control characters that a record may have; a pipe gets its very bytes.
    return None if template is None else Template(template, raw=not sys.stdout.isatty())


def print_records(
    output: Output,
    records: Iterable[Record],
    encoding: Encoding,
    template: Template | None,
    *,
    live: bool = False,
) -> None:
    """Print records while they come, as the user wants them."""
    if template is None:
        output.rows(record_fields(encoding), records, streamed=True, live=live)
        return
    for record in records:
        write_bytes(template.render(record))


def plan_scan(snapshot: Snapshot, where: Target, chosen: Range) -> Scan:
    """The records of a range, taken in each partition. Raises UnknownTopicOrPartition."""
    from txnlog.read.view import EARLIEST

    partitions = snapshot.partitions(where.topic)
    wanted = partitions if where.partition is None else [where.partition]
    if where.partition is not None:
        _check_partition(snapshot, where)
    starts = {number: _offset(snapshot, where, number, chosen.start) for number in wanted}
    ends = dict.fromkeys(partitions, EARLIEST)
    for number in wanted:
        # Where the end lies before the beginning there is simply nothing to read.
        ends[number] = max(_offset(snapshot, where, number, chosen.stop), starts[number])
    return snapshot.scan(where.topic, starts, ends)


def _check_partition(snapshot: Snapshot, where: Target) -> None:
    from txnlog.names import TopicPartition

    snapshot.check_partition(TopicPartition(where.topic, where.partition or 0))


def _offset(snapshot: Snapshot, where: Target, partition: int, bound: Bound) -> int:
    """The offset of one end of a range in one partition."""
    from txnlog.names import TopicPartition

    first = snapshot.beginning_offsets(where.topic)[partition]
    last = snapshot.end_offsets(where.topic)[partition]
    match bound:
        case "earliest":
            return first
        case Offset(offset):
            # Named alone, a partition is held to what it has: the library refuses what it has not.
            return offset if where.partition is not None else min(max(offset, first), last)
        case Time(timestamp_ms):
            found = snapshot.offset_for_time(TopicPartition(where.topic, partition), timestamp_ms)
            return last if found is None else found.offset
        case FromStart(count):
            return min(first + count, last)
        case FromEnd(count):
            return max(last - count, first)
        case _:
            return last
