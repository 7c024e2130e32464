"""``min.insync.replicas`` for those who write through the real producers (R6).

What was put at the leader alone is found there again when it is tried once more: that is no
acknowledgement.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.replication.replica_folders import lose, make, reopened, values, write
from tests.support.steps import stop_before_marking
from txnlog.errors import CommitStateUnknown, NotEnoughReplicas
from txnlog.replication import Follower, ReplicaReturn, Replicas
from txnlog.replication.roots import copies, puts
from txnlog.replication.roots.epochs import joining
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.state.transaction import HELP_AFTER_MS
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.threads import run_together
from txnlog.tables.pinned_topic import PinnedTopic
from txnlog.testing import VirtualClock

pytestmark = pytest.mark.rule("R6")


@pytest.fixture
def store(tmp_path: Path) -> txnlog.Store:
    """Two roots, both of which must have what is acknowledged."""
    store = make(tmp_path, **{"min.insync.replicas": 2})
    store.topics.create("t", partitions=1)
    return store


class Losing:
    """Takes the second root's disk away just before it is given a log's next entry."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, what: str) -> None:
        self.bring_back: Callable[[], object] | None = None
        self._folder, self._what = folder, what
        for module in (puts, copies):
            patch.setattr(module, "put_at", self._before(module.put_at))

    def _before(self, put_at: Callable[..., bool]) -> Callable[..., bool]:
        def put(agreement: Any, epoch: Any, member: str, name: str, data: bytes) -> bool:
            if name.startswith(self._what) and self.bring_back is None:
                self.bring_back = lose(self._folder / "b")
            return put_at(agreement, epoch, member, name, data)

        return put


class Shortage:
    """The second root is out; it is brought back when it has been for some time."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, store: txnlog.Store) -> None:
        self.clock = store.logs.clock
        self.began_s = 0.0
        self._lasts = threading.Lock()
        self._folder, self._patch, self._store = folder, patch, store

    @property
    def lasted_s(self) -> float:
        return self.clock.monotonic_s() - self.began_s

    def begin(self, for_s: float, before: str | None = None) -> None:
        """Now, or just before an object of which this is how its name begins is put."""
        if before is not None:
            self._begin_before(before, for_s)
            return
        agreement = self._store.storage.agreement  # type: ignore[attr-defined]
        agreement.put_out(agreement.refresh(), "r1-0", "it fails")
        self.began_s = self.clock.monotonic_s()
        sleep = self.clock.sleep

        def sleep_and_look(time_s: float) -> None:
            sleep(time_s)
            if self.lasted_s > for_s and self._lasts.acquire(blocking=False):
                Replicas(reopened(self._folder)).add(str(self._folder / "b"))

        self._patch.setattr(self.clock, "sleep", sleep_and_look)

    def _begin_before(self, what: str, for_s: float) -> None:
        put = ReplicatedStorage.put_if_absent

        def put_in_it(storage: ReplicatedStorage, name: str, data: bytes) -> bool:
            if name.startswith(what) and not self.began_s:
                self.begin(for_s)
            return put(storage, name, data)

        self._patch.setattr(ReplicatedStorage, "put_if_absent", put_in_it)


def in_sync(store: txnlog.Store) -> tuple[str, ...]:
    return Replicas(store).describe().in_sync


def test_a_flush_below_the_minimum(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is at the leader; the producer is told that it does not know, and may go on."""
    lost = Losing(tmp_path, monkeypatch, "topics/t/log/")
    with store.producer(delivery_timeout_ms=5_000) as producer:
        producer.send("t", value=b"1")
        with pytest.raises(CommitStateUnknown, match=r"min\.insync\.replicas is 2"):
            producer.flush()
        assert lost.bring_back is not None
        assert in_sync(store) == ("r0-0",)
        lost.bring_back()
        Replicas(store).add(str(tmp_path / "b"))
        producer.flush()
    assert values(reopened(tmp_path)) == ["1"]


@pytest.mark.parametrize("joins", [False, True])
def test_only_roots_that_are_out_and_were_not_taken_out_are_to_be_added(
    store: txnlog.Store, tmp_path: Path, joins: bool
) -> None:
    """Who is exchanged for good, or copies already, is not what is missing."""
    replicas = Replicas(store)
    for root in ("c", "d"):
        replicas.add(str(tmp_path / root))
    replicas.remove("r2")
    replicas.forget("r2-0")
    agreement = store.storage.agreement  # type: ignore[attr-defined]
    for member in ("r1-0", "r3-0"):
        agreement.put_out(agreement.refresh(), member, "it fails")
    if joins:
        epoch = agreement.refresh()
        agreement.propose(
            joining(epoch, "r1-1", epoch.roots["r1"].url, agreement.proposer("it joins"))
        )
    out = "d" if joins else "bd"
    added = ", ".join(f"`txnlog replicas add {tmp_path / root}`" for root in out)
    with pytest.raises(NotEnoughReplicas, match=f"back: {added}$"):
        store.storage.put("topics/t/data/0/1.parquet", b"")


def test_no_election_is_waited_for_that_would_not_help(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can take the place of the one that is missing, so there is no time for three lags."""
    lost, clock = Losing(tmp_path, monkeypatch, "topics/t/log/"), store.logs.clock
    producer = store.producer(delivery_timeout_ms=5_000)
    producer.send("t", value=b"1")
    began_s = clock.monotonic_s()
    with pytest.raises(CommitStateUnknown, match=r"`txnlog replicas add .*/b`"):
        producer.flush()
    assert 5 < clock.monotonic_s() - began_s < 10
    assert lost.bring_back is not None
    lost.bring_back()
    Replicas(store).add(str(tmp_path / "b"))
    producer.close()


def test_metrics_tell_who_is_in_sync(store: txnlog.Store, tmp_path: Path) -> None:
    def told() -> dict[str, float]:
        found = {one.name.removeprefix("txnlog_replicas_"): one.value for one in store.metrics()}
        names = ("in_sync", "min_in_sync", "under_min", "out", "joining", "controller_answers")
        return {name: found[name] for name in names}

    whole = {"in_sync": 2, "min_in_sync": 2, "under_min": 0, "out": 0, "joining": 0}
    whole["controller_answers"] = 1
    assert told() == whole
    agreement = store.storage.agreement  # type: ignore[attr-defined]
    agreement.put_out(agreement.refresh(), "r1-0", "it fails")
    assert told() == {**whole, "in_sync": 1, "under_min": 1, "out": 1}
    Replicas(store).alter({"min.insync.replicas": 1})
    Replicas(store).remove("r1")
    assert told() == {**whole, "in_sync": 1, "min_in_sync": 1, "out": 1}
    Replicas(store).forget("r1-0")  # it is not expected back
    assert told() == {**whole, "in_sync": 1, "min_in_sync": 1}
    Replicas(store).add(str(tmp_path / "b"))
    write(store, "1")
    store, bring_back = reopened(tmp_path, "a"), lose(tmp_path / "control")
    assert told()["controller_answers"] == 0
    bring_back()
    store.logs.clock.sleep(11)
    assert told()["controller_answers"] == 1
    assert told() == {**whole, "min_in_sync": 1}


def test_a_commit_below_the_minimum(store: txnlog.Store, tmp_path: Path) -> None:
    """Its outcome is unknown; it is known when another root is back."""
    producer = store.producer(transactional_id="w")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", value=b"1")
    producer.flush()
    bring_back = lose(tmp_path / "b")
    with pytest.raises(CommitStateUnknown, match=r"min\.insync\.replicas is 2"):
        producer.commit_transaction()
    assert in_sync(store) == ("r0-0",)
    bring_back()
    Replicas(store).add(str(tmp_path / "b"))
    producer.commit_transaction()
    assert values(reopened(tmp_path)) == ["1"]
    producer.close()


def test_offsets_below_the_minimum(
    store: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.producer() as producer:
        producer.send("t", value=b"1")
    with store.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll()) == 1
        lost = Losing(tmp_path, monkeypatch, "groups/")
        with pytest.raises(NotEnoughReplicas, match=r"min\.insync\.replicas is 2"):
            consumer.commit()
        assert lost.bring_back is not None
        lost.bring_back()
        Replicas(store).add(str(tmp_path / "b"))
        consumer.commit()
    assert [one.offset for one in reopened(tmp_path).groups.describe("g").offsets] == [1]


@pytest.fixture
def quick(tmp_path: Path) -> txnlog.Store:
    """The same, where a root is given up after one second."""
    store = make(tmp_path, **{"min.insync.replicas": 2, "replica.lag.time.max.ms": 1_000})
    store.topics.create("t", partitions=1)
    return store


@pytest.mark.parametrize("before", [None, "topics/t/log/"])
def test_a_flush_waits_for_its_delivery_timeout(
    quick: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """Not for three times the lag: its data is not in memory any more, to be sent again."""
    short = Shortage(tmp_path, monkeypatch, quick)
    with quick.producer(delivery_timeout_ms=60_000) as producer:
        producer.send("t", value=b"1")
        short.begin(40, before)
        producer.flush()
        assert 40 < short.lasted_s < 45
    assert values(reopened(tmp_path)) == ["1"]


@pytest.mark.parametrize("before", [None, "transactions/", "topics/t/log/"])
def test_a_transaction_waits_for_its_delivery_timeout(
    quick: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """Wherever it begins: before the data, the first state, or the append."""
    short = Shortage(tmp_path, monkeypatch, quick)
    with quick.producer(transactional_id="w", delivery_timeout_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", value=b"1")
        short.begin(40, before)
        producer.commit_transaction()
        assert 40 < short.lasted_s < 45
    assert values(reopened(tmp_path)) == ["1"]


def test_data_that_is_sent_on_waits_too(
    quick: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment is full while records are sent, and more than one request waits."""
    short = Shortage(tmp_path, monkeypatch, quick)
    quick.topics.create("u", partitions=1, config={"segment.bytes": 1 << 20})
    with quick.producer(delivery_timeout_ms=60_000, buffer_memory_bytes=1 << 20) as producer:
        short.begin(40)
        for _ in range(3):
            producer.send_batch("u", [{"value": os.urandom(700_000)}])
        assert 40 < short.lasted_s < 45
    assert len(reopened(tmp_path).scan("u").to_arrow()) == 3


def test_no_longer_than_that(
    quick: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a put is tried five times, and what it may have left is looked for after each."""
    short = Shortage(tmp_path, monkeypatch, quick)
    with quick.producer(delivery_timeout_ms=20_000) as producer:
        producer.send("t", value=b"1")
        short.begin(1_000, "topics/t/log/")
        with pytest.raises(CommitStateUnknown, match=r"min\.insync\.replicas is 2"):
            producer.flush()
        assert 20 < short.lasted_s < 25
        Replicas(quick).add(str(tmp_path / "b"))
        producer.flush()
    assert values(reopened(tmp_path)) == ["1"]


def test_what_is_gathered_waits_as_long(
    quick: txnlog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In threads, as where roots are servers; where nobody waits they do not."""
    storage = quick.storage
    monkeypatch.setattr(LocalStorage, "gather", lambda _, calls: run_together(calls, 2))
    puts = [partial(storage.put, f"topics/t/data/0/{name}-0.log", b"1") for name in "abc"]
    short = Shortage(tmp_path, monkeypatch, quick)
    short.begin(40)
    with pytest.raises(NotEnoughReplicas):
        storage.gather(puts)
    assert short.lasted_s < 20
    with storage.wait_up_to(1e6):  # the others' clock runs on while one thread joins the root
        storage.gather(puts)
    assert short.lasted_s > 40
    assert in_sync(quick) == ("r0-0", "r1-1")


def test_maintenance_brings_back_the_root_that_is_missing(
    store: txnlog.Store, tmp_path: Path
) -> None:
    """Below the minimum nothing is acknowledged: it puts nothing before that."""
    Replicas(store).alter({"replica.auto.return": True})
    lost = lose(tmp_path / "b")
    with pytest.raises(NotEnoughReplicas):
        [*store.maintain()]
    assert in_sync(store) == ("r0-0",)
    with pytest.raises(NotEnoughReplicas):
        [*reopened(tmp_path).maintain()]
    lost()
    steps = [*reopened(tmp_path).maintain()]
    assert [type(step) for step in steps] == [ReplicaReturn]
    assert in_sync(store) == ("r0-0", "r1-1")


def test_what_was_decided_is_read_and_followed_below_it(tmp_path: Path) -> None:
    """Though nothing can be confirmed: nor can anything be put that would outlive the decision."""
    store = make(tmp_path, **{"min.insync.replicas": 2})
    store.topics.create("t", config={"record.format": "parquet"})
    write(store, "0")
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", value=b"1")
    stop_before_marking(producer)
    producer.commit_transaction()
    found = find_replicated(store.storage)
    assert found is not None
    found.agreement.put_out(found.agreement.refresh(), "r1-0", "it fails")
    later = VirtualClock(VirtualClock().now_ms() + HELP_AFTER_MS + 1_000, seed=99)
    reader = txnlog.open(str(tmp_path / "a"), clock=later)
    assert values(reader) == ["0", "1"]
    assert PinnedTopic.of(reader.logs, "t").view.end_offsets == {0: 2}
    Follower(reader, str(tmp_path / "standby")).follow()
    assert values(txnlog.open(str(tmp_path / "standby"))) == ["0", "1"]
