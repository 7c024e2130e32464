"""``txnlog bench``: how fast a store is, from here: writing, reading, committing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from txnlog.cli.output.fields import Field, number, text
from txnlog.cli.output.progress import progress_bar
from txnlog.cli.output.streams import warn
from txnlog.cli.session import Session

if TYPE_CHECKING:
    from txnlog.storage.counting import CountingStorage
    from txnlog.store import Store


_ID: Final = "txnlog-bench"
_BATCH_BYTES: Final = 8 << 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One phase: how much, how long, and (for single commits) how long one took."""

    phase: str
    count: int
    size_bytes: int
    duration_ms: int
    request_count: int
    p50_us: int | None = None
    p99_us: int | None = None

    @property
    def per_second(self) -> int:
        return self.count * 1000 // max(self.duration_ms, 1)

    @property
    def bytes_per_second(self) -> int:
        return self.size_bytes * 1000 // max(self.duration_ms, 1)


def _show_megabytes(measured: Measurement) -> str:
    return f"{measured.bytes_per_second / 1e6:.1f}"


def _show_milliseconds(microseconds: int | None) -> str:
    return "-" if microseconds is None else f"{microseconds / 1000:.1f}"


FIELDS: list[Field[Measurement]] = [
    text("phase", "PHASE", lambda measured: measured.phase),
    number("count", "COUNT", lambda measured: measured.count),
    number("size_bytes", None, lambda measured: measured.size_bytes),
    number("duration_ms", "MS", lambda measured: measured.duration_ms),
    number("per_second", "PER S", lambda measured: measured.per_second),
    Field("bytes_per_second", "MB/S", lambda m: m.bytes_per_second, _show_megabytes, numeric=True),
    Field(
        "p50_us", "P50 MS", lambda m: m.p50_us, lambda m: _show_milliseconds(m.p50_us), numeric=True
    ),
    Field(
        "p99_us", "P99 MS", lambda m: m.p99_us, lambda m: _show_milliseconds(m.p99_us), numeric=True
    ),
    number("request_count", "REQUESTS", lambda measured: measured.request_count),
]


def measure_store(
    session: Session,
    records: Annotated[
        int, typer.Option("--records", min=1, help="How many records are written and read.")
    ] = 1_000_000,
    record_bytes: Annotated[
        int, typer.Option("--record-bytes", min=0, max=1_000_000, help="Size of a value.")
    ] = 100,
    commits: Annotated[
        int, typer.Option("--commits", min=1, help="How many small transactions.")
    ] = 100,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, max=1000, help="The topic's partitions.")
    ] = 4,
) -> None:
    """Measure the speed of writes, reads and small transactions.

    On a store that --store names, in a topic of its own that is deleted afterwards; otherwise
    in a temporary folder. TXNLOG_STORE is not touched. Values are random bytes, so compression
    does not flatter. REQUESTS go to the storage.

    \b
    Example:
      txnlog bench --records 100000
      txnlog bench --store s3://bucket/store --commits 20
    """
    import secrets

    with _open_store(session) as (opened, counting):
        topic = f"{_ID}-{secrets.token_hex(4)}"
        opened.topics.create(topic, partitions=partitions)
        counting.take()
        try:
            measured = [*_measure(opened, counting, topic, records, record_bytes, commits)]
        finally:
            opened.topics.delete(topic)
    session.output.rows(FIELDS, measured)


@contextmanager
def _open_store(session: Session) -> Iterator[tuple[Store, CountingStorage]]:
    import tempfile

    from txnlog.storage import open_storage
    from txnlog.storage.counting import CountingStorage
    from txnlog.store import attach

    if session.explicit_url is not None:
        counting = CountingStorage(session.open_store().storage)
        yield attach(counting), counting
        return
    with tempfile.TemporaryDirectory(prefix="txnlog-bench-") as folder:
        warn(f"measuring in {folder}; name another place with --store")
        counting = CountingStorage(open_storage(str(Path(folder) / "store")))
        yield attach(counting, create=True), counting


def _measure(
    store: Store,
    counting: CountingStorage,
    topic: str,
    records: int,
    record_bytes: int,
    commits: int,
) -> Iterator[Measurement]:
    phases: list[tuple[str, Callable[[Progress], tuple[int, int, list[int]]], int]] = [
        ("write", lambda progress: _write(store, topic, records, record_bytes, progress), records),
        ("read", lambda progress: _read(store, topic, progress), records),
        ("commit", lambda progress: _commit(store, topic, commits, progress), commits),
    ]
    for phase, run, total in phases:
        with progress_bar(phase, unit="records") as shown:
            progress = shown or (lambda _done, _total: None)
            progress(0, total)
            began_ns = time.monotonic_ns()
            count, size_bytes, took_us = run(progress)
            duration_ms = (time.monotonic_ns() - began_ns) // 1_000_000
        requests = sum(counting.take().values())
        took_us.sort()
        yield Measurement(
            phase,
            count,
            size_bytes,
            duration_ms,
            requests,
            took_us[len(took_us) // 2] if took_us else None,
            took_us[len(took_us) * 99 // 100] if took_us else None,
        )


def _write(
    store: Store, topic: str, records: int, record_bytes: int, progress: Progress
) -> tuple[int, int, list[int]]:
    """One atomic write of all of them, keys and values in columns."""
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(0)
    rows = min(records, max(_BATCH_BYTES // max(record_bytes, 8), 1))
    with store.producer() as producer:
        for first in range(0, records, rows):
            count = min(rows, records - first)
            keys = pa.array(np.arange(first, first + count)).cast(pa.string()).cast(pa.binary())
            data = pa.py_buffer(random.bytes(count * record_bytes))
            ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(record_bytes))
            values = pa.Array.from_buffers(pa.binary(), count, [None, ends, data])
            producer.send_batch(topic, pa.record_batch({"key": keys, "value": values}))
            progress(first + count, records)
        producer.flush()
    return records, records * record_bytes, []


def _read(store: Store, topic: str, progress: Progress) -> tuple[int, int, list[int]]:
    import pyarrow.compute as pc

    scan = store.scan(topic)
    count = size_bytes = 0
    for batch in scan.to_batches():
        count += batch.num_rows
        size_bytes += pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0
        progress(count, scan.record_count)
    return count, size_bytes, []


def _commit(
    store: Store, topic: str, commits: int, progress: Progress
) -> tuple[int, int, list[int]]:
    """Transactions of one record each, one after the other."""
    took_us = []
    with store.producer(transactional_id=_ID) as producer:
        producer.init_transactions()
        for done in range(1, commits + 1):
            began_ns = time.monotonic_ns()
            producer.begin_transaction()
            producer.send(topic, b"x")
            producer.commit_transaction()
            took_us.append((time.monotonic_ns() - began_ns) // 1000)
            progress(done, commits)
    return commits, commits, took_us
