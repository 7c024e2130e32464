"""Records: found by key, by what is in them, by offset or by time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from time import process_time
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from txnlog.clock import Clock
from txnlog.errors import InvalidOption
from txnlog.names import TopicPartition
from txnlog.read.consumer_record import ConsumerRecord, each_record
from txnlog.read.isolation import check_isolation_level
from txnlog.read.search import find_records
from txnlog.snapshot import Snapshot
from txnlog.ui.console import Console

if TYPE_CHECKING:
    from pyarrow.compute import Expression

_SHOWN = 50
_LOOKED_AT = 200_000
_MOST_CPU_S = 0.05
_MOST_S = 2.0
"""A search looks at no more records, nor for longer, before it shows what it has found."""
_FIRST_LOOK = 500


def show_records(console: Console, request: Request) -> Response:
    """Records of one partition from a place on, or those of them that match."""
    asked = request.query_params
    topic, partition = request.path_params["topic"], request.path_params["partition"]
    level = check_isolation_level(asked.get("level", "read_committed"))
    snapshot = console.store.snapshot([topic], isolation_level=level)
    where = TopicPartition(topic, partition)
    snapshot.check_partition(where)
    first = snapshot.beginning_offsets(topic)[partition]
    end = snapshot.end_offsets(topic)[partition]
    start = _find_start(snapshot, where, asked.get("from", ""), first, end)
    key = asked.get("key", "").encode(errors="surrogateescape") or None
    wanted = find_records(key, asked.get("grep") or None)
    span = start, min(start + _LOOKED_AT, end)
    found, behind = _look(console.store.logs.clock, snapshot, where, span, wanted)
    schema = snapshot.view(topic).schema
    columns = schema.columns.names if schema else []
    return console.page(
        request,
        "records.html",
        {
            "title": f"{topic}:{partition}, records",
            "topic": topic,
            "partition": partition,
            "partitions": snapshot.partitions(topic),
            "columns": columns,
            "rows": [(record, _cells_of(record.value, columns)) for record in found],
            "asked": {name: asked.get(name, "") for name in ("from", "key", "grep")},
            "level": level,
            "first": first,
            "end": end,
            "start": start,
            "looked_to": behind,
            "behind": behind if behind < end else None,
        },
    )


def _look(
    clock: Clock,
    snapshot: Snapshot,
    where: TopicPartition,
    span: tuple[int, int],
    wanted: Expression | None,
) -> tuple[list[ConsumerRecord], int]:
    """Records within a span of offsets, as many as a page has, and the offset that it came to.

    It looks further and further, and stops when the page has taken long enough: there may be a
    segment for each record.
    """
    until_s, until_cpu_s = clock.monotonic_s() + _MOST_S, process_time() + _MOST_CPU_S
    others = snapshot.beginning_offsets(where.topic)  # of which nothing is read
    found: list[ConsumerRecord] = []
    (at, stop), width = span, _FIRST_LOOK
    while at < stop:
        to = min(at + width, stop)
        starts, ends = ({**others, where.partition: offset} for offset in (at, to))
        scan = snapshot.scan(where.topic, starts, ends, filter=wanted, as_json=True)
        batches = (batch for batch in scan.to_batches() if batch.num_rows)
        matching = (record for batch in batches for record in each_record(where, batch))
        found += islice(matching, _SHOWN - len(found))
        if len(found) == _SHOWN:
            return found, found[-1].offset + 1
        if clock.monotonic_s() > until_s or process_time() > until_cpu_s:
            return found, to
        at, width = to, 2 * width
    return found, stop


def _cells_of(value: bytes | None, columns: Sequence[str]) -> list[bytes | None]:
    """A record of a typed topic, which is JSON, column by column; empty if it deletes its key."""
    if value is None or not columns:
        return []
    row = json.loads(value)
    return [_cell_of(row.get(name)) for name in columns]


def _cell_of(value: object) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value, ensure_ascii=False).encode()


def _find_start(snapshot: Snapshot, where: TopicPartition, text: str, first: int, end: int) -> int:
    """The offset of what was typed: an offset, a time, or (nothing) the newest records."""
    text = text.strip()
    if not text:
        return max(end - _SHOWN, first)
    if text.removeprefix("-").isdecimal() and len(text) < 20:
        offset = int(text)
        return min(max(end + offset if offset < 0 else offset, first), end)
    try:
        moment = datetime.fromisoformat(text.removeprefix("@"))
    except ValueError:
        raise InvalidOption(
            f"{text!r} is not a place to begin at: give an offset, -10 for the last ten, or a time "
            "such as 2024-05-01T12:00"
        ) from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    found = snapshot.offset_for_time(where, int(zoned.timestamp() * 1000))
    return end if found is None else found.offset
