"""Records of a topic: the newest, those that are searched for, and single ones to take along."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from string import ascii_letters, digits
from typing import Final

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from txnlog.clock import Clock
from txnlog.errors import InvalidOption, TxnlogError
from txnlog.names import TopicPartition
from txnlog.read.consumer_reads import ConsumerRecord, each_record
from txnlog.read.isolation_levels import check_isolation_level
from txnlog.read.json_records import json_objects
from txnlog.read.plan import scan_columns
from txnlog.read.scan_reader import read_each
from txnlog.ui.console import Console
from txnlog.ui.look import Look, look_at
from txnlog.ui.record_query import LEVELS, RecordQuery, write_place
from txnlog.ui.render import SHOWN_BYTES
from txnlog.values import Schemas
from txnlog.values.reader import decode_each

SHOWN: Final = 50
_COLUMNS: Final = 100
"""So many are shown of a typed topic."""
_PAGE_BYTES: Final = 100 * SHOWN_BYTES
_LEAST_BYTES: Final = 200
_HEADERS: Final = 50
_MOST_TAKEN: Final = 4 * SHOWN
_MOST_DECODING_S: Final = 2
_PLAIN_CHARS: Final = f"{ascii_letters}{digits}._-"


def show_records(console: Console, request: Request) -> Response:
    """Records of all partitions, or those that match: a page, and the ways to its neighbours."""
    topic: str = request.path_params["topic"]
    query = RecordQuery.of(request.query_params)
    clock = console.store.logs.clock
    view = console.store.snapshot([topic], isolation_level=query.level).view(topic)
    wanted = query.wanted(clock.now_ms())
    chosen = query.partitions(view)
    begin, older = query.begin(view, chosen)
    all_columns = view.schema.columns.names if view.schema else []
    columns = all_columns[:_COLUMNS]
    content: dict[str, object] = {
        "title": f"{topic}, records",
        "topic": topic,
        "query": query,
        "levels": LEVELS,
        "partition_count": len(view.partitions),
        "chosen": chosen,
        "columns": columns,
        "column_count": len(all_columns),
        "most_headers": _HEADERS,
        "now_ms": clock.now_ms(),
    }
    if query.errors:
        return console.page(request, "records.html", content | {"look": None}, status=400)
    storage = console.store.storage
    look = look_at(storage, clock, view, begin, wanted, count=SHOWN, older=older)
    starts, ends = view.beginning_offsets, view.end_offsets
    lower, upper = (look.end, look.begin) if older else (look.begin, look.end)
    to_older = sum(lower[p] - starts[p] for p in chosen)
    to_newer = sum(ends[p] - upper[p] for p in chosen)
    offsets = sum(ends[p] - starts[p] for p in chosen)
    shown = look.found if older is query.newest_first else look.found[::-1]
    fields = [None] * len(shown) if columns else _fields_of(console.store.schemas, shown, clock)
    content |= {
        "look": look,
        "rows": [
            (record, _cells_of(record.value, columns), found)
            for record, found in zip(shown, fields, strict=True)
        ],
        "most_bytes": _most_bytes(shown, len(columns)),
        "older": query.link(before=write_place(lower, chosen)) if to_older else None,
        "newer": query.link(after=write_place(upper, chosen)) if to_newer else None,
        "first": query.link() if query.before or query.after else None,
        "offsets": offsets,
        "looked_at": offsets - (to_older if query.newest_first else to_newer),
        "goes_on": _goes_on(query, look, older=older),
        "taken": ",".join(f"{record.partition}:{record.offset}" for record in shown),
    }
    return console.page(request, "records.html", content)


def _most_bytes(records: Sequence[ConsumerRecord], column_count: int) -> int:
    """How much is shown of each key, value, column and header: together what a browser lays out."""
    each = 2 + column_count
    count = sum(each + min(len(record.headers), _HEADERS) for record in records)
    return min(max(_PAGE_BYTES // max(count, 1), _LEAST_BYTES), SHOWN_BYTES)


def _goes_on(query: RecordQuery, look: Look, *, older: bool) -> bool:
    """Whether a search has not come far enough to fill the page."""
    is_on_its_way = older is query.newest_first
    return is_on_its_way and len(look.found) < SHOWN and not look.is_complete


def take_records(console: Console, request: Request) -> Response:
    """Single records as lines of JSON, as ``txnlog records read -o jsonl`` prints them."""
    topic: str = request.path_params["topic"]
    places = _parse_places(request.query_params.get("rows", ""))
    level = check_isolation_level(request.query_params.get("level") or LEVELS[0])
    view = console.store.snapshot([topic], isolation_level=level).view(topic)
    parts = []
    for partition, offsets in groupby(sorted(places), key=itemgetter(0)):
        view.check_partition(partition)
        there = range(view.beginning_offsets[partition], view.end_offsets[partition])
        for start, stop in _runs([offset for _, offset in offsets if offset in there]):
            parts += view.visible_ranges({partition: start}, {partition: stop})
    columns = scan_columns(None, view.schema, as_json=True)
    found: dict[tuple[int, int], ConsumerRecord] = {}
    for part, batches in read_each(console.store.storage, parts, columns, by_page=True):
        where = TopicPartition(topic, part.partition)
        for batch in batches:
            found |= {(r.partition, r.offset): r for r in each_record(where, batch)}
    gone = [place for place in places if place not in found]
    if gone:
        raise InvalidOption(
            f"{len(gone)} of the {len(places)} records are not there any more, "
            f"the first of them {topic}:{gone[0][0]} at offset {gone[0][1]}: load the page again"
        )
    lines = "".join(f"{json.dumps(_as_json(found[place]))}\n" for place in places)
    name = "".join(char if char in _PLAIN_CHARS else "_" for char in topic)
    headers = {"content-disposition": f'attachment; filename="{name}.jsonl"'}
    return Response(lines, media_type="application/x-ndjson", headers=headers)


def _parse_places(text: str) -> list[tuple[int, int]]:
    places = [place.partition(":")[::2] for place in text.split(",")]
    if len(places) > _MOST_TAKEN or not all(
        number.isdecimal() and number.isascii() and len(number) < 19
        for place in places
        for number in place
    ):
        raise InvalidOption(
            f"rows names no records: give at most {_MOST_TAKEN} as partition:offset, with commas"
        )
    return [(int(partition), int(offset)) for partition, offset in places]


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending offsets as spans without gaps."""
    for _, run in groupby(enumerate(offsets), key=lambda pair: pair[1] - pair[0]):
        numbers = [offset for _, offset in run]
        yield numbers[0], numbers[-1] + 1


def _as_json(record: ConsumerRecord) -> dict[str, object]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "timestamp_type": "LogAppendTime" if record.timestamp_type else "CreateTime",
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "key": _bytes_as_json(record.key),
        "value": _bytes_as_json(record.value),
        "headers": [
            {"key": name, "value": _bytes_as_json(value)} for name, value in record.headers
        ],
    }


def _bytes_as_json(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode("ascii")}


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


def _fields_of(
    schemas: Schemas, records: Sequence[ConsumerRecord], clock: Clock
) -> list[tuple[int, bytes] | None]:
    """Of each record the id of its schema and its fields as JSON; None: it has none.

    Schemas are looked for only if a value begins as one that carries an id, and only for a while:
    what is not decoded by then is shown as it is, and may be when the page is asked for again.
    """
    found: list[tuple[int, bytes] | None] = [None] * len(records)
    values = [record.value for record in records]
    if not any(value is not None and value[:1] == b"\0" and len(value) > 5 for value in values):
        return found
    until_s = clock.monotonic_s() + _MOST_DECODING_S

    def is_over() -> bool:
        return clock.monotonic_s() > until_s

    try:
        binary = pa.array(values, pa.binary())
        for schema_id, rows, columns in decode_each(schemas, binary, is_over):
            texts = json_objects(columns.schema.names, columns.columns, columns.num_rows)
            for row, text in zip(rows.tolist(), texts.to_pylist(), strict=True):
                found[row] = (schema_id, text.encode())
    except TxnlogError:  # the page is of records, which are shown as they are
        return found
    return found
