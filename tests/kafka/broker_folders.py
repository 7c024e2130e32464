"""Partition folders that a real broker has written, and what a real consumer read from them.

``broker/`` was written once by Apache Kafka 3.9 with real clients: transactions that interleave,
span segments, were aborted or left open; a compacted topic, a trimmed one, one with log append
time; all codecs, nulls and headers; the old message formats. ``expected.jsonl.gz`` is what Kafka's
own consumer returned.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from txnlog import IsolationLevel, Store

BROKER = Path(__file__).parent / "broker"
TOPICS = {"compacted": 1, "hanging": 1, "orders": 2, "stamped": 1, "trimmed": 1}
OLD_TOPICS = {"mixed": 1, "v0": 1, "v1": 1, "v1compacted": 1, "v1stamped": 1}
"""How many partitions each has. The old ones hold magic 0 and 1, and ``mixed`` holds 2 as well."""

# offset, timestamp ms, timestamp type, key, value, headers
Record: TypeAlias = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


@dataclass(frozen=True)
class Partition:
    """What the broker and its consumer said of one partition."""

    beginning_offset: int
    end_offset: int
    last_stable_offset: int
    uncommitted: list[Record]
    committed: list[Record]


@cache
def expected() -> dict[str, Partition]:
    """By folder."""
    found: dict[str, Any] = {}
    with gzip.open(BROKER / "expected.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            if isinstance(line, dict):
                name = line.pop("partition")
                found[name] = {**line, "uncommitted": [], "committed": []}
                continue
            offset, time, kind, key, value, headers, committed = line
            record = (
                offset,
                time,
                kind,
                _bytes(key),
                _bytes(value),
                [(k, _bytes(v)) for k, v in headers],
            )
            found[name]["uncommitted"].append(record)
            if committed:
                found[name]["committed"].append(record)
    return {name: Partition(**parts) for name, parts in found.items()}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def read(
    store: Store,
    topic: str,
    partition: int,
    isolation_level: IsolationLevel,
    start: int | None = None,
) -> list[Record]:
    """What a scan returns of one partition, in the same shape."""
    snapshot = store.snapshot([topic], isolation_level=isolation_level)
    starts = snapshot.end_offsets(topic)
    starts[partition] = snapshot.beginning_offsets(topic)[partition] if start is None else start
    table = snapshot.scan(topic, starts).to_arrow()
    times = table.column("timestamp").cast("int64").to_pylist()
    return [
        (
            row["offset"],
            time // 1000,
            row["timestampType"],
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"]],
        )
        for row, time in zip(table.to_pylist(), times, strict=True)
    ]


def files_of(store: Store) -> list[str]:
    """Every object of the store but its own file and the topics' logs."""
    return [name for name, _ in store.storage.list_all("") if "/data/" in name]
