"""A compacted topic, and a model of what must be left of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from txnlog.admin.compaction.compact import Compaction, compact_topic
from txnlog.admin.times import Times
from txnlog.state.segment import StoredSegment
from txnlog.store import Store, attach

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


def standing(store: Store, topic: str = "t", partition: int = 0) -> list[tuple[int, StoredSegment]]:
    """What stands for a partition's offsets, in order: those without records, too.

    But for ``purged_from``: which entry has placed it first, before it was placed again.
    """
    log = attach(store.storage, clock=store.logs.clock).logs.topic(topic)
    log.refresh()
    part = log.state.partitions[partition]
    found = log.find_records(log.state, {partition: (part.log_start_offset, part.end_offset)})
    both = [*found.segments[partition], *found.emptied.get(partition, ())]
    return sorted((one.base_offset, _wherever_placed(one.stored)) for one in both)


def _wherever_placed(stored: StoredSegment) -> StoredSegment:
    special = stored.rewritten
    return stored if special is None else replace(stored, rewritten=replace(special, purged_from=0))


def newest(records: Sequence[Record], end: int | None = None) -> list[Record]:
    """What a dict keeps of the records with keys before ``end``; and all from there on."""
    kept: dict[Key, Record] = {}
    for record in records:
        if record.key is not None and (end is None or record.offset < end):
            kept[record.key] = record
    beyond = [r for r in records if end is not None and r.offset >= end]
    return sorted(kept.values(), key=lambda record: record.offset) + beyond
