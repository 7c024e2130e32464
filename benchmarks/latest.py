"""The newest record of each key: CPU beside a scan of all and DuckDB's window; memory for a key."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import ParamSpec, TypeAlias, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.acero  # which pyarrow imports when it first groups, and then pandas with it
from timing import growth

import txnlog
from txnlog.admin.compaction.compact import compact_topic
from txnlog.admin.times import Times
from txnlog.storage import open_storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import attach

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")
Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
KEY_BYTES = (8, 16, 100)
_VALUE = b"." * 100
_BATCH_ROWS = 100_000
_TIMES = 10
_COLUMNS = (
    "bytes of a key",
    "keys come",
    "scan, CPU s",
    "latest=True, CPU s",
    "DuckDB, CPU s",
    "DuckDB / latest=True",
    "MB",
    "bytes a key",
    "documents",
)
_COMPACTED = (
    "bytes of a key",
    "newer",
    "scan, CPU s",
    "latest=True, CPU s",
    "scan / latest=True",
    "requests",
    "with latest=True",
)
_WINDOW = """
    SELECT key, value FROM read_parquet(?)
    QUALIFY row_number() OVER (PARTITION BY key ORDER BY "offset" DESC) = 1 AND value IS NOT NULL
"""


def measure(folder: Path, count: int) -> list[str]:
    """Lines of Markdown: topics of ``count`` records, ten for each key, by key size.

    A key's memory is the growth over that of half as many keys, by the difference in keys.
    """
    keys = count // _TIMES
    head = (
        f"{count:,} records with values of 100 bytes in 4 partitions, {keys:,} keys, lz4: all of "
        "them one round after the other, or any at each time. "
        "CPU and memory of a separate process each. Bytes a key: how much more the process grows "
        "than over a topic of half as many keys, by their difference; the documents say about 300 "
        "and five times the key's size. DuckDB: a window over the same records, with their "
        "offsets, in one Parquet file; it returns keys and values, latest=True all columns; no key "
        "is in two partitions. CPU is of all threads, without imports: the median of three. "
        "(Target: DuckDB / latest=True 1.0 or more.)"
    )
    lines = [head, "", f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    store = txnlog.open(str(folder / "latest"), create=True)
    for size in KEY_BYTES:
        half, whole = f"half-{size}", f"whole-{size}"
        for topic, some in ((half, keys // 2), (whole, keys)):
            store.topics.create(topic, partitions=4)
            _write(store, topic, _rounds(some, _TIMES), size)
        _, half_mb = _measured(store.url, half, rows=keys // 2, latest=True)
        cells, whole_mb = _beside_duckdb(store, folder, whole, keys, _TIMES * keys)
        each = (whole_mb - half_mb) * 1e6 / (keys - keys // 2)
        lines.append(f"| {size} | in rounds | {cells} | {each:.0f} | {300 + 5 * size} |")
        store.topics.create(f"any-{size}", partitions=4)
        numbers = np.random.default_rng(3).integers(0, keys, count)
        _write(store, f"any-{size}", [numbers], size)
        rows = len(np.unique(numbers))
        cells, _ = _beside_duckdb(store, folder, f"any-{size}", rows, count)
        lines.append(f"| {size} | any | {cells} | | |")
    return [*lines, "", *_measure_compacted(store, keys)]


def _beside_duckdb(
    store: txnlog.Store, folder: Path, topic: str, rows: int, records: int
) -> tuple[str, float]:
    """Cells of a line, and the MB of memory."""
    file = folder / f"{topic}.parquet"
    store.scan(topic, columns=["key", "value", "offset"]).to_file(file)
    scanned, latest, duckdb_s = [], [], []
    for _ in range(3):
        scanned.append(_measured(store.url, topic, rows=records, latest=False)[0])
        latest.append(_measured(store.url, topic, rows=rows, latest=True))
        duckdb_s.append(_in_process(_read_window, file, rows=rows))
    file.unlink()
    latest_s, mb = (median(found) for found in zip(*latest, strict=True))
    beside_s = median(duckdb_s)
    return (
        f"{median(scanned):.2f} | {latest_s:.2f} | {beside_s:.2f} | {beside_s / latest_s:.2f} "
        f"| {mb:.0f}"
    ), mb


def _measure_compacted(store: txnlog.Store, count: int) -> list[str]:
    """Lines of Markdown: compacted topics, of whose ``count`` keys some have come again since."""
    lines = [
        (
            f"Compacted: {count:,} keys, and then newer records of some of them. CPU is the least "
            "of three readings in a process of its own; requests are those of a reading. "
            "(Target: scan / latest=True 0.7 or more where 1 % are newer.)"
        ),
        "",
        f"| {' | '.join(_COMPACTED)} |",
        "|---" * len(_COMPACTED) + "|",
    ]
    for size in KEY_BYTES:
        for percent in (0, 1, 10):
            topic = f"compacted-{size}-{percent}"
            store.topics.create(topic, partitions=4, config={"cleanup.policy": "compact"})
            _write(store, topic, _rounds(count, 1), size)
            _compact(store, topic)
            _write(store, topic, _rounds(count * percent // 100, 1), size)
            scanned_s = _in_process(_read_often, store.url, topic, latest=False)
            latest_s = _in_process(_read_often, store.url, topic, latest=True)
            scanned, latest = (_requests(store.url, topic, latest=of) for of in (False, True))
            lines.append(
                f"| {size} | {percent} % | {scanned_s:.3f} | {latest_s:.3f} "
                f"| {scanned_s / latest_s:.2f} | {scanned} | {latest} |"
            )
    return lines


def _compact(store: txnlog.Store, topic: str) -> None:
    times = Times(store.logs.clock, None)
    if not [*compact_topic(store.logs, topic, times, even_clean=True)]:
        raise AssertionError(f"{topic} was not compacted")


def _rounds(keys: int, times: int) -> Iterator[Numbers]:
    """The numbers of all keys, so many times, each time in another order."""
    random = np.random.default_rng(3)
    return (random.permutation(keys) for _ in range(times))


def _write(store: txnlog.Store, topic: str, numbers: Iterable[Numbers], size: int) -> None:
    with store.producer() as producer:
        for some in numbers:
            for start in range(0, len(some), _BATCH_ROWS):
                texts = some[start : start + _BATCH_ROWS].astype(f"S{size}")
                keys = pa.array(np.char.zfill(texts, size).tolist())
                batch = {"key": keys, "value": pa.array([_VALUE] * len(texts))}
                producer.send_batch(topic, pa.record_batch(batch))


def _measured(url: str, topic: str, *, rows: int, latest: bool) -> tuple[float, float]:
    return _in_process(_read, url, topic, rows=rows, latest=latest)


def _in_process(function: Callable[P, ReturnT], *args: P.args, **kwargs: P.kwargs) -> ReturnT:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def _read(url: str, topic: str, *, rows: int, latest: bool) -> tuple[float, float]:
    """The CPU seconds that it takes, and the MB that the process grows by."""
    scan = txnlog.open(url).scan(topic, latest=latest)
    with growth() as grown:
        started_s = time.process_time()
        found = sum(batch.num_rows for batch in scan.to_batches())
        taken_s = time.process_time() - started_s
    _check(found, rows)
    return taken_s, grown[0]


def _read_often(url: str, topic: str, *, latest: bool) -> float:
    """The CPU seconds that it takes, at least."""
    scan = txnlog.open(url).scan(topic, latest=latest)
    least_s = float("inf")
    for _ in range(3):
        started_s = time.process_time()
        for _ in scan.to_batches():
            pass
        least_s = min(least_s, time.process_time() - started_s)
    return least_s


def _requests(url: str, topic: str, *, latest: bool) -> int:
    counting = CountingStorage(open_storage(url))
    scan = attach(counting).scan(topic, latest=latest)
    counting.take()
    for _ in scan.to_batches():
        pass
    return sum(counting.take().values())


def _read_window(file: Path, *, rows: int) -> float:
    """The CPU seconds that DuckDB takes."""
    started_s = time.process_time()
    reader = duckdb.connect().sql(_WINDOW, params=[str(file)]).to_arrow_reader()
    found = sum(batch.num_rows for batch in reader)
    taken_s = time.process_time() - started_s
    _check(found, rows)
    return taken_s


def _check(found: int, rows: int) -> None:
    if found != rows:
        raise AssertionError(f"{found} rows were read, {rows} were expected")
