"""Many writers append to one topic at the same time, where each request takes 30 ms."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from txnlog.clock import SystemClock
from txnlog.producer import Producer
from txnlog.storage.base import Storage, Upload
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.storage.threads import MAX_AHEAD_BYTES, SizedCall
from txnlog.store import attach
from txnlog.testing import HeapStorage

WRITERS = 32
REQUEST_S = 0.03

T = TypeVar("T")


class DelayedStorage(ForwardingStorage):
    """One process's view of a storage: each request takes 30 ms, requests made together as well.

    The effect comes in the middle, as it does on an object store.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()

    def _delayed(self, kind: str, call: Callable[[], T]) -> T:
        self.counts[kind] += 1
        time.sleep(REQUEST_S / 2)
        try:
            return call()
        finally:
            time.sleep(REQUEST_S / 2)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._delayed("put", lambda: self.inner.put_if_absent(name, data))

    def put(self, name: str, data: bytes) -> None:
        self._delayed("put", lambda: self.inner.put(name, data))

    def upload(self, name: str) -> Upload:
        return self._delayed("upload", lambda: self.inner.upload(name))

    def get(self, name: str) -> bytes:
        return self._delayed("get", lambda: self.inner.get(name))

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return self._delayed("list", lambda: self.inner.list_names(folder, start_after))

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        if doomed:
            self._delayed("delete", lambda: self.inner.delete(doomed))

    def without_fsync(self) -> DelayedStorage:
        return self

    def gather(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        return Storage.gather(self, calls)

    def run_ahead(
        self, calls: Iterable[SizedCall[T]], most_bytes: int = MAX_AHEAD_BYTES
    ) -> Generator[T]:
        return Storage.run_ahead(self, calls, most_bytes)


class _Writer:
    """A process that flushes one record after the other until the time is up.

    With a transactional id, each record has its own transaction.
    """

    def __init__(self, storage: Storage, transactional_id: str | None) -> None:
        self.storage = DelayedStorage(storage)
        self.commits_s: list[float] = []
        self._transactional_id = transactional_id

    def run(self, begin: threading.Barrier, seconds: float) -> None:
        store = attach(self.storage, clock=SystemClock())
        producer = store.producer(transactional_id=self._transactional_id)
        if self._transactional_id is not None:
            producer.init_transactions()
        self._commit(producer, b"warm")
        begin.wait()
        self.storage.counts.clear()
        end_s = time.perf_counter() + seconds
        while (begun_s := time.perf_counter()) < end_s:
            self._commit(producer, b"x" * 100)
            self.commits_s.append(time.perf_counter() - begun_s)

    def _commit(self, producer: Producer, value: bytes) -> None:
        if self._transactional_id is None:
            producer.send("t", value)
            producer.flush()
            return
        producer.begin_transaction()
        producer.send("t", value)
        producer.commit_transaction()


def measure(seconds: float) -> list[str]:
    """Lines of Markdown: commits by number of writers."""
    what = (
        f"Each writer flushes one record at a time, for {seconds:.0f} s; each request takes "
        f"{1000 * REQUEST_S:.0f} ms. Writers are threads of one process, each with a store of its "
        "own. Slowest and fastest: the commits of that writer."
    )
    head = (
        "| writers | transactions | commits/s | slowest | fastest | median commit s | worst s "
        "| requests a commit | files of the log/s |"
    )
    lines = [what, "", head, "|---|---|---|---|---|---|---|---|---|"]
    return [
        *lines,
        *(
            _row(count, seconds, in_transactions=in_transactions)
            for in_transactions in (False, True)
            for count in (1, 2, 8, WRITERS)
        ),
    ]


def _row(count: int, seconds: float, *, in_transactions: bool) -> str:
    heap = HeapStorage()
    attach(heap, create=True, clock=SystemClock()).topics.create("t", partitions=4)
    ids = [f"writer-{n}" if in_transactions else None for n in range(count)]
    writers = [_Writer(heap, transactional_id) for transactional_id in ids]
    begin = threading.Barrier(count)
    threads = [threading.Thread(target=w.run, args=(begin, seconds)) for w in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    commits = [len(writer.commits_s) for writer in writers]
    times = sorted(took for writer in writers for took in writer.commits_s)
    requests: Counter[str] = sum((writer.storage.counts for writer in writers), Counter())
    store = attach(heap, clock=SystemClock())
    assert store.scan("t").record_count == sum(commits) + count, "a commit was lost, or came twice"
    names = heap.list_names("topics/t/log")
    entries = sum(name.endswith(".json") for name in names) - 1
    return (
        f"| {count} | {'yes' if in_transactions else 'no'} | {sum(commits) / seconds:.1f} "
        f"| {min(commits)} | {max(commits)} "
        f"| {times[len(times) // 2]:.2f} | {times[-1]:.2f} "
        f"| {requests.total() / sum(commits):.1f} | {entries / seconds:.1f} |"
    )
