"""A compacted topic, and a model of what must be left of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from txnlog.admin.compaction.compact import Compaction, compact_topic
from txnlog.admin.times import Times
from txnlog.store import Store

Key = bytes | None


@dataclass(frozen=True, slots=True)
class Record:
    """The parts of a record that must not change while it stays."""

    offset: int
    key: Key
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read(store: Store, topic: str = "t", partition: int = 0, **options: object) -> list[Record]:
    """All records of a partition."""
    columns = ["partition", "offset", "key", "value", "timestamp", "headers"]
    rows = store.scan(topic, columns=columns, **options).to_arrow()  # type: ignore[arg-type]
    return [
        Record(
            row["offset"],
            row["key"],
            row["value"],
            int(row["timestamp"].timestamp() * 1000),
            tuple((h["key"], h["value"]) for h in row.get("headers") or ()),
        )
        for row in rows.to_pylist()
        if row["partition"] == partition
    ]


def compact(store: Store, topic: str = "t", **options: object) -> list[Compaction]:
    """Compact what there is by the clock of the store's process."""
    options = {"even_clean": True, **options}
    times = Times(store.logs.clock, None)
    return [*compact_topic(store.logs, topic, times, **options)]  # type: ignore[arg-type]


def newest(records: Sequence[Record], end: int | None = None) -> list[Record]:
    """What a dict keeps of the records with keys before ``end``; and all from there on."""
    kept: dict[Key, Record] = {}
    for record in records:
        if record.key is not None and (end is None or record.offset < end):
            kept[record.key] = record
    beyond = [r for r in records if end is not None and r.offset >= end]
    return sorted(kept.values(), key=lambda record: record.offset) + beyond
