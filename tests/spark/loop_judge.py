"""What ``spark_driver`` must leave in a store, whatever was done to it. Reads without Spark."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import txnlog
from tests.spark.spark_helpers import stored
from txnlog import Store
from txnlog.clock import SystemClock
from txnlog.storage.counting import CountingStorage
from txnlog.store import attach
from txnlog.testing import VirtualClock

PARTITIONS = 4
LATE_MS = 16 * 60_000
"""Past the timeout of every transaction: the longest that a store allows is 15 minutes."""


def prepare(url: str, records: int) -> Store:
    """A store with the topics of ``spark_driver``, and so many numbers in ``in``."""
    store = txnlog.open(url, create=True)
    for topic, partitions in (("in", PARTITIONS), ("out", PARTITIONS), ("sums", 1)):
        store.topics.create(topic, partitions=partitions)
    with store.producer() as producer:
        for number in range(records):
            producer.send("in", value=b"%d" % number, key=b"%d" % number)
    return store


def consumed(store: Store, group: str = "g") -> int:
    """How many records lie before the group's offsets."""
    if group not in store.groups.list():
        return 0
    return sum(at.offset or 0 for at in store.groups.describe(group).offsets)


def check_whole(store: Store) -> int:
    """Every number once at most, both outputs of a batch or none; how many numbers there are."""
    snapshot = store.snapshot(["out", "sums"])
    out, sums = (
        [int(v) for v in snapshot.scan(topic).to_arrow().column("value").to_pylist()]
        for topic in ("out", "sums")
    )
    doubled = {number: times for number, times in Counter(out).items() if times > 1}
    assert not doubled, f"{len(doubled)} numbers came more than once: {sorted(doubled)[:5]}"
    assert sum(out) == 3 * sum(sums), "a batch is there in part"
    return len(out)


class Late(CountingStorage):
    """The disk's own clock would say that it is not late at all."""

    def modified_ms(self, name: str) -> None:  # noqa: ARG002 - of no object
        return None


def check_not_blocked(store: Store) -> None:
    """A reader who comes after the timeout of what a killed driver has open reads to the end."""
    late = attach(Late(store.storage), clock=VirtualClock(SystemClock().now_ms() + LATE_MS))
    for topic in ("in", "out", "sums"):
        described = late.topics.describe(topic)
        assert described.open_transactions == (), topic
        for part in described.partitions:
            assert part.last_stable_offset == part.end_offset, (topic, part)


def check_done(store: Store, records: int, group: str = "g") -> list[str]:
    """Everything exactly once, nothing open; orphans, the only things left over, are returned."""
    assert stored(store, "out") == [3 * number for number in range(records)]
    assert sum(stored(store, "sums")) == sum(range(records))
    described = store.groups.describe(group)
    ends = [part.end_offset for part in store.topics.describe("in").partitions]
    assert [at.offset for at in described.offsets] == ends
    assert [at.pending for at in described.offsets] == [None] * PARTITIONS
    assert sum(ends) == records
    for topic in ("in", "out", "sums"):
        found = store.topics.describe(topic)
        assert found.open_transactions == ()
        assert all(part.last_stable_offset == part.end_offset for part in found.partitions)
    undecided = {"Ongoing", "PrepareCommit", "PrepareAbort"}
    for transaction in store.transactions.list():
        assert transaction.status not in undecided
    return orphans(store)


_ORPHAN = re.compile(
    r"topics/[^/]+/data/(\d+|shared)/[0-9a-zA-Z_-]+\.(log|index|timeindex)"
    r"|staging/[^/]+\.(json|read)"
    r"|\.tmp/[0-9a-f]{32}"
)
_PROTOCOL = re.compile(
    r"txnlog\.json"
    r"|(topics/[^/]+/log|groups/[^/]+|transactions/[^/]+)/\d{20}\.(json|commit|abort|checkpoint)"
)


def orphans(store: Store) -> list[str]:
    """Files that no entry names. They lie where such may lie, and no named one is missing."""
    root = Path(store.url)
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    placed = {
        part.paths.stem for topic in store.topics.list() for part in store.topics.segments(topic)
    }
    missing = {f"{stem}.log" for stem in placed} - files
    assert not missing, f"entries name files that are not there: {sorted(missing)[:5]}"
    left = sorted(
        name
        for name in files
        if not _PROTOCOL.fullmatch(name) and name.rpartition(".")[0] not in placed
    )
    lost = [name for name in left if not _ORPHAN.fullmatch(name)]
    assert not lost, f"files where nobody would look for them: {lost[:5]}"
    return left
