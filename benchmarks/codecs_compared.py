"""Codecs beside each other, by record format: bytes, and the CPU time of writing and scanning."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from rows import batches
from timing import interleaved
from typed import flights_table

import txnlog

CODECS = ("none", "lz4", "zstd")
FORMATS = ("columns", "kafka", "parquet")


def measure(folder: Path, count: int, repetitions: int) -> list[str]:
    """Lines of Markdown. ``count`` rows of keys and values; of flights as many as there are."""
    store = txnlog.open(str(folder / "codecs"), create=True)
    flights = flights_table()
    kinds: dict[str, tuple[pa.Table, tuple[str, ...]]] = {
        "flights, typed": (flights, ("parquet",)),
        "flights, as JSON": (_as_json(flights), FORMATS),
        "orders of 100 bytes": (pa.Table.from_batches(batches(count)), FORMATS),
        "random, 16 bytes": (_random(count), FORMATS),
    }
    head = "One thread, one partition; CPU seconds."
    lines = [head, "", "| rows | format | codec | write | scan | bytes a row |"]
    lines.append("|---|---|---|---|---|---|")
    for kind, (rows, formats) in kinds.items():
        schema = rows.schema if kind == "flights, typed" else None
        for record_format in formats:
            lines += _rows_of(store, kind, rows, schema, record_format, repetitions)
    return [*lines, "", *_sizes(store, flights, folder)]


def _rows_of(
    store: txnlog.Store,
    kind: str,
    rows: pa.Table,
    schema: pa.Schema | None,
    record_format: str,
    repetitions: int,
) -> list[str]:
    size: dict[str, float] = {}
    made = 0

    def write(codec: str) -> None:
        nonlocal made
        made += 1
        config = {"compression.type": codec, "record.format": record_format}
        store.topics.create(f"t{made}", config=config, schema=schema)
        with store.producer() as producer:
            producer.send_batch(f"t{made}", rows)

    def forget(codec: str) -> None:
        size[codec] = store.topics.describe(f"t{made}").size_bytes / len(rows)
        store.topics.delete(f"t{made}")

    written = interleaved(
        {codec: partial(write, codec) for codec in CODECS},
        repetitions,
        {codec: partial(forget, codec) for codec in CODECS},
    )
    topics = {}
    for codec in CODECS:
        write(codec)
        topics[codec] = f"t{made}"
    scanned = interleaved(
        {codec: partial(_scan, store, topic) for codec, topic in topics.items()}, repetitions
    )
    for topic in topics.values():
        store.topics.delete(topic)
    return [
        f"| {kind} | {record_format} | {codec} | {written[codec].cpu_s:.2f} "
        f"| {scanned[codec].cpu_s:.2f} | {size[codec]:.1f} |"
        for codec in CODECS
    ]


def _scan(store: txnlog.Store, topic: str) -> None:
    assert sum(batch.num_rows for batch in store.scan(topic).to_batches()) > 0


def _as_json(flights: pa.Table) -> pa.Table:
    lines = flights.to_pandas().to_json(orient="records", lines=True).encode().splitlines()
    return pa.table({"value": pa.array(lines, pa.binary())})


def _random(count: int) -> pa.Table:
    """Values that no codec makes smaller."""
    data = np.random.default_rng(7).bytes(16 * count)
    offsets = pa.py_buffer(np.arange(0, 16 * (count + 1), 16, dtype=np.int32))
    values = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])
    return pa.table({"value": values})


def _sizes(store: txnlog.Store, flights: pa.Table, folder: Path) -> list[str]:
    """The flights in one commit, by a topic and by deltalake, each with its defaults.

    The bytes of their files, and how long one line of code takes.
    """
    store.topics.create("once", schema=flights.schema)
    target = folder / "delta"

    def ours() -> None:
        with store.producer() as producer:
            producer.send_batch("once", flights)

    def delta() -> None:
        write_deltalake(str(target), flights, mode="append")

    taken = interleaved({"ours": ours, "Delta": delta}, 2)
    size = {"ours": sum(s.size_bytes for s in store.topics.segments("once")) // 3}
    size["Delta"] = sum(file.stat().st_size for file in target.glob("*.parquet")) // 3
    lines = ["| the flights once, each by one line of code | bytes | CPU s |", "|---|---|---|"]
    for name, count in size.items():
        lines.append(f"| {name} | {count:,} | {taken[name].cpu_s:.2f} |")
    ratio = taken["Delta"].cpu_s / taken["ours"].cpu_s
    return [*lines, f"| ours / Delta | {size['ours'] / size['Delta']:.2f} | speed {ratio:.2f} |"]
