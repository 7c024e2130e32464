"""The store that pairs meet in, its clock and its judge; and what time does to all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache

import pyarrow as pa
import pytest

from tests.support.log.settling import settle_early
from tests.support.simulation.pairs.history import History, Intent, Place, Seen, Violation
from tests.support.simulation.pairs.suspension import StepStorage
from txnlog.clock import Signal
from txnlog.errors import CommitStateUnknown, TxnlogError
from txnlog.log.manifest_table import ManifestTable
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.scan import Scan
from txnlog.schema import DELETED
from txnlog.snapshot import Snapshot
from txnlog.store import attach
from txnlog.testing import HeapStorage, VirtualClock

BEGIN_MS = 1_700_000_000_000
CLEANUP_MS = TIMEOUT_MS = 20_000
HOUR_MS = 3_600_000
TOMBSTONES_MS = 30_000
LIMITS_MS = 60_000
"""After this transactions have timed out, names may be freed and tombstones go."""
CONFIG = {
    "log.cleanup.age.ms": CLEANUP_MS,
    "transaction.max.timeout.ms": TIMEOUT_MS,
    "transactional.id.expiration.ms": HOUR_MS,
    "offsets.retention.ms": HOUR_MS,
}
NEAR = ("a", "b")
FAR = ("k", "d")
TOPICS = ("a", "b", "d", "k", "r", "y")
STORE_URL = "s3://pairs/store"
"""Where engines would look for its files: it is told to them, and they do not look."""
KEYED = ("k", "y")
COLUMNS = {"k": ["key", "value"], "y": ["id", "name"]}
"""The columns of a key and its value."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
WITH_DELETED = SCHEMA.append(pa.field(DELETED, pa.bool_()))


@contextmanager
def small_numbers() -> Iterator[None]:
    """A few entries are settled, joined and cleaned up already, and two are a chapter."""
    with pytest.MonkeyPatch.context() as patch:
        settle_early(patch)
        patch.setattr("txnlog.log.chapters.CHAPTER", 2)
        for module in ("state_log", "topic_log"):
            patch.setattr(f"txnlog.log.{module}.CHECKPOINT_INTERVAL", 2)
        patch.setattr("txnlog.log.transaction_log._KEPT_ENTRIES", 1)
        patch.setattr("txnlog.write.coordinator._CLEAN_INTERVAL", 4)
        # The same few manifests are read again and again, by each new process.
        patch.setattr(ManifestTable, "decode", lru_cache(maxsize=4096)(ManifestTable.decode))
        yield


class _Clock(VirtualClock):
    """The world's time, and a process's own tokens."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._tokens = random.Random(seed)

    @property
    def time_ms(self) -> int:  # type: ignore[override]
        return self._world.time_ms

    def now_ms(self) -> int:
        return self._world.time_ms

    def monotonic_s(self) -> float:
        return self._world.time_ms / 1000

    def sleep(self, seconds: float) -> None:
        self._world.time_ms += max(1, int(seconds * 1000))

    def wait(self, event: Signal, seconds: float) -> None:
        if not event.is_set():
            self.sleep(seconds)

    def token(self) -> str:
        return f"{self._tokens.getrandbits(128):032x}"

    def jitter(self) -> float:
        return self._tokens.random()


class World:
    """One store, whose processes share a clock that goes on with each request."""

    def __init__(self, storage: HeapStorage, history: History, time_ms: int) -> None:
        self.storage = storage
        self.history = history
        self.time_ms = time_ms
        self._actors = 0
        storage.time_ms = lambda: self.time_ms

    def copy(self) -> World:
        """The same, to go on from."""
        other = World(self.storage.copy(), self.history.copy(), self.time_ms)
        other._actors = self._actors
        return other

    def actor(self, name: str) -> Actor:
        """A new process."""
        self._actors += 1
        return Actor(self, name, self._actors)

    def step(self) -> None:
        self.time_ms += 1

    def free_names(self, topics: Sequence[str] = TOPICS) -> None:
        """Others write and clean up for so long that names of all logs are freed."""
        others = self.actor("others")
        store = others.store
        producer = store.producer()
        for _ in range(3):
            for topic in [*topics, *topics]:
                intent = others.begin("others")
                try:
                    others.send(producer, intent, topic)
                    others.flush(producer, intent)
                except TxnlogError:
                    self.history.aborted(intent)
            self.time_ms += LIMITS_MS
        for found in store.transactions.list().with_errors():
            if not isinstance(found, TxnlogError):
                store.logs.transactions.clean(found.transactional_id, found.log_entry)


class Actor:
    """One process: its store, through its own storage, and what it knows to be acknowledged."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        self.world = world
        self.history = world.history
        self.name = name
        self.storage = StepStorage(world.storage, world.step)
        self.clock = _Clock(world, seed)
        self.known: set[str] = set()
        self.store = attach(self.storage, clock=self.clock)

    def begin(self, name: str, consumed: Sequence[str] = ()) -> Intent:
        """Begin an intent, with everything that is known here as its causes."""
        intent = self.history.begin(name, self.name, self.known)
        intent.consumed = frozenset(consumed)
        return intent

    def send(self, producer: Producer, intent: Intent, topic: str, partition: int = 0) -> None:
        """Send a record of its own kind to a topic."""
        if topic not in KEYED:
            producer.send(topic, self.history.write(intent, topic), partition=partition)
            return
        count = len(self.history.intents)
        key = count % 3
        value = None if count % 4 == 3 else self.history.write(intent, topic)
        self.history.write_key(intent, topic, f"{key}", value)
        if topic == "k":
            producer.send("k", value, key=f"{key}")
            return
        row = {"id": [key], "name": [value], DELETED: [value is None]}
        producer.send_batch("y", pa.record_batch(row, schema=WITH_DELETED))

    def commit(self, producer: Producer, intent: Intent) -> bool:
        """Commit, until the outcome is known; whether it is committed."""
        self.history.ask(intent)
        for _ in range(3):
            try:
                producer.commit_transaction()
            except CommitStateUnknown:
                continue
            except TxnlogError:
                self.history.aborted(intent)
                with suppress(TxnlogError):
                    producer.abort_transaction()
                raise
            self.history.committed(intent)
            self.known.add(intent.name)
            return True
        return False

    def flush(self, producer: Producer, intent: Intent) -> None:
        """Flush without a transaction, until the outcome is known."""
        self.history.ask(intent)
        for _ in range(3):
            try:
                producer.flush()
            except CommitStateUnknown:
                continue
            self.history.committed(intent)
            self.known.add(intent.name)
            return

    def saw(self, snapshot: Snapshot, who: str, *, began: int, **told: bool) -> None:
        """Read a snapshot, and have it judged."""
        view = view_of(snapshot)
        told.setdefault("atomic", snapshot.is_atomic)
        consistency = snapshot.consistency
        told["causal"] = consistency in ("instant", "causal")
        # At a level that shows prefixes an open transaction may hold causes back, at any instant.
        shows_prefixes = snapshot.isolation_level != "snapshot"
        held_back = told.get("past", False) or self.history.held_back(began)
        told["instant"] = consistency == "instant" and not (shows_prefixes and held_back)
        self.known |= self.history.saw(view, f"{self.name} ({who})", began=began, **told)


def view_of(snapshot: Snapshot) -> dict[Place, Seen]:
    """What a snapshot shows, by partition."""
    found: dict[Place, Seen] = {}
    for topic in snapshot.topics:
        starts, ends = snapshot.beginning_offsets(topic), snapshot.end_offsets(topic)
        for partition, start in starts.items():
            found[topic, partition] = Seen(start, ends[partition], [])
        columns = ["_partition", "_offset"] if topic == "y" else ["partition", "offset"]
        columns.append("name" if topic == "y" else "value")
        table = snapshot.scan(topic, columns=columns).to_arrow()
        for partition, offset, value in zip(*(c.to_pylist() for c in table.columns), strict=True):
            if value is not None:
                text = value if isinstance(value, str) else value.decode()
                found[topic, partition].records.append((offset, text))
    return found


def table_of(snapshot: Snapshot, topic: str) -> dict[str, str]:
    """What a topic's keys are, by each record after the other."""
    table: dict[str, str] = {}
    for key, value in _keys_of(snapshot.scan(topic, columns=COLUMNS[topic])):
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


def latest_of(snapshot: Snapshot, topic: str) -> dict[str, str]:
    """What the library finds: each key once, and none that was deleted."""
    table: dict[str, str] = {}
    for key, value in _keys_of(snapshot.scan(topic, columns=COLUMNS[topic], latest=True)):
        if key in table or value is None:
            raise Violation("latest", f"{topic}: {key} is {value}, and was {table.get(key)}")
        table[key] = value
    return table


def _keys_of(scan: Scan) -> Iterator[tuple[str, str | None]]:
    keys, values = (map(text_of, column.to_pylist()) for column in scan.to_arrow().columns)
    for key, value in zip(keys, values, strict=True):
        assert key is not None
        yield key, value


def text_of(value: bytes | str | int | None) -> str | None:
    """A key or a value of any topic."""
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else str(value)


@cache
def prepared(rules: str) -> World:
    """The world that each case begins with, under the rules of a "disk" or an "object store"."""
    storage = HeapStorage(like_disk=rules == "disk")
    world = World(storage, History(), BEGIN_MS - 3 * HOUR_MS)
    attach(storage, create=True, config=CONFIG, clock=_Clock(world, 0))
    with small_numbers():
        _fill(world)
    world.time_ms = BEGIN_MS
    return world


def _fill(world: World) -> None:
    one = world.actor("preparing")
    store, history = one.store, world.history
    store.topics.create("a", partitions=2)
    store.topics.create("b")
    store.topics.create("d")
    compact = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0,
        "delete.retention.ms": TOMBSTONES_MS,
        "file.delete.delay.ms": HOUR_MS,
    }
    store.topics.create("k", config=compact)
    store.topics.create("r", config={"retention.ms": HOUR_MS, "file.delete.delay.ms": HOUR_MS})
    store.topics.create("y", schema=SCHEMA, key=["id"], config={"record.format": "parquet"})
    history.fade("r")
    history.compacts("k")

    def transact(transactional_id: str, *where: str, commits: bool = True) -> None:
        producer = store.producer(
            transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
        )
        producer.init_transactions()
        producer.begin_transaction()
        intent = one.begin(transactional_id)
        for topic in where:
            one.send(producer, intent, topic)
        if commits:
            one.commit(producer, intent)
        else:
            producer.flush()
            producer.abort_transaction()
            history.aborted(intent)

    transact("idle", *TOPICS)
    old = store.consumer(group_id="old", auto_offset_reset="earliest")
    old.commit({TopicPartition("a", 0): 1})
    with store.producer() as producer:
        for topic in TOPICS:
            intent = one.begin("plain")
            one.send(producer, intent, topic)
            one.flush(producer, intent)
    with store.producer() as producer:
        intent = one.begin("gone")
        value = history.write(intent, "k")
        history.write_key(intent, "k", "gone", value)
        producer.send("k", value, key="gone")
        one.flush(producer, intent)
    world.time_ms = BEGIN_MS - 600_000
    transact("w", "a", "b", "k", "d")
    group = store.consumer(group_id="g", auto_offset_reset="earliest")
    intent = one.begin("group")
    history.move("g", intent, 1)
    history.ask(intent)
    group.commit({TopicPartition("a", 0): 1})
    history.committed(intent)
    with store.producer() as producer:
        intent = one.begin("tombstone")
        history.write_key(intent, "k", "gone", None)
        producer.send("k", None, key="gone")
        one.flush(producer, intent)
    transact("x", "a", "b", commits=False)
