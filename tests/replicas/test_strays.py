"""What was deleted and comes back at a root, by who copied it and slept: nothing refers to it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support.log.settling import settle_early
from tests.support.replication.replica_folders import write
from tests.support.replication.replica_world import Roots
from tests.support.steps import values
from txnlog.names import TopicPartition
from txnlog.replication.replaced_data import ReplacedData
from txnlog.replication.roots.election import elect, take_out
from txnlog.replication.roots.epochs import FACTOR, root_of
from txnlog.replication.roots.old_incarnations import forget
from txnlog.replication.roots.reassignment import reassign
from txnlog.replication.roots.verification import verify
from txnlog.replication.sound_copies import SoundCopies
from txnlog.store import Store, attach
from txnlog.testing import VirtualClock

DAY_MS = 86_400_000


pytestmark = pytest.mark.usefixtures("unlogged")


def broken(store: Store) -> list[str]:
    found = store.examine(with_probe=False)
    return [one.detail for one in found if one.state in ("damage", "unreadable")]


class Cluster:
    """A store on roots in memory, whose storage's time is the clock's."""

    def __init__(self, count: int, config: dict[str, object], **settings: str) -> None:
        self.clock = VirtualClock()
        self.roots = Roots(count, settings)
        for member in self.roots.epoch().in_sync:
            self.roots.heap(member).time_ms = lambda: self.clock.time_ms
        self.storage = self.roots.plain(self.clock)
        self.storage.trust(probed=True)
        self.agreement = self.storage.agreement
        self.store = attach(self.storage, create=True, clock=self.clock, config=config)

    def other(self, seed: int) -> Store:
        clock = VirtualClock(self.clock.time_ms, seed=seed)
        return attach(self.roots.plain(self.clock), clock=clock)

    def maintain(self) -> None:
        for _ in range(3):
            self.clock.time_ms += 100 * DAY_MS
            self.store.maintain()

    def data_files(self, members: Iterable[str]) -> set[str]:
        heaps = [self.roots.heap(member) for member in members]
        return {name for heap in heaps for name, _ in heap.list_all("topics/t/data")}


def test_data_that_comes_back_from_a_root_that_was_out() -> None:
    """It was deleted meanwhile. Nobody sees it, and vacuum deletes it again."""
    them = Cluster(3, {}, **{FACTOR: "2"})
    store = them.store
    store.topics.create("t", config={"file.delete.delay.ms": 0})
    for number in range(4):
        write(store, str(number))
    out = next(one for one in ("b-0", "c-0") if them.data_files([one]))
    take_out(them.agreement, root_of(out))
    reassign(them.agreement)
    store.topics.delete_records({TopicPartition("t", 0): 3})
    them.maintain()
    kept = them.data_files(them.roots.epoch().in_sync)
    assert len(kept) == 1
    reassign(them.agreement)
    strays = them.data_files(them.roots.epoch().in_sync) - kept
    assert strays
    assert values(store, "t") == values(them.other(2), "t") == [b"3"]
    assert broken(store) == []
    judge = SoundCopies(store.logs)
    assert [*verify(them.storage, judge, with_contents=True, repair=False)] == []
    them.maintain()
    assert them.data_files(them.roots.epoch().in_sync) == kept
    assert values(store, "t") == [b"3"]


def test_what_was_purged_long_ago_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a root that was out has it, and the log has let go of the merge that it was in."""
    settle_early(monkeypatch)
    them = Cluster(3, {}, **{FACTOR: "2"})
    store = them.store
    config = {"file.delete.delay.ms": 0, "retention.ms": -1, "compression.type": "none"}
    store.topics.create("t", config=config)

    def write_keys(*keys: str) -> None:
        for key in keys:
            with store.producer() as producer:
                producer.send("t", f"of {key}", key)

    def holding() -> set[str]:
        heaps = {one: them.roots.heap(one) for one in ("a-0", "b-0", "c-0")}
        return {
            one
            for one, heap in heaps.items()
            for name, _ in heap.list_all("topics/t/data")
            if b"mallory" in heap.get(name)
        }

    write_keys("mallory", "ann", "ann", "ann")
    [*store.maintenance.merge("t")]
    them.clock.time_ms += 1
    store.maintain()
    out = next(one for one in ("b-0", "c-0") if one in holding())
    take_out(them.agreement, root_of(out))
    store.maintenance.purge("t", [{"key": b"mallory"}])
    store.maintain()
    assert holding() == {out}
    for _ in range(3):
        reassign(them.agreement, is_replaced=ReplacedData(them.other(2).logs))
        assert holding() == {out}
        them.clock.time_ms += 2 * DAY_MS
        write_keys(*["bob"] * 9)
        store.maintain()
    log = store.logs.topic("t")
    assert log.manifests.left_out_rewrites()
    logs = them.other(3).logs
    forget(them.storage, out, SoundCopies(logs), is_replaced=ReplacedData(logs))


@pytest.mark.parametrize("age_ms", [DAY_MS - 1, DAY_MS + 1], ids=["young", "old"])
def test_what_was_never_placed_comes_back_while_its_writer_may_be_at_work(age_ms: int) -> None:
    them = Cluster(3, {}, **{FACTOR: "2"})
    them.store.topics.create("t")
    write(them.store, "0")
    (data,) = them.data_files(["a-0", "b-0", "c-0"])
    stray = f"{data.rpartition('/')[0]}/{'0' * 32}-0.log"
    them.roots.heap("c-0").put_if_absent(stray, b"stray")
    take_out(them.agreement, "c")
    them.clock.time_ms += age_ms
    write(them.store, "1")
    reassign(them.agreement, is_replaced=ReplacedData(them.other(2).logs))
    assert (stray in them.data_files(["a-0", "b-0"])) is (age_ms < DAY_MS)


@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["a-0", "b-0"], ids=["leader", "follower"])
def test_an_entry_that_comes_back_when_its_name_was_freed(where: str) -> None:
    """At the leader, or at a root that leads later: nobody takes it for an entry of the log."""
    them = Cluster(2, {"log.cleanup.age.ms": 1_000, "transaction.max.timeout.ms": 1_000})
    leader, freed, data = them.roots.heap("a-0"), "topics/t/log/00000000000000000001.json", b""
    them.store.topics.create("t")
    for number in range(300):
        write(them.store, str(number))
        them.clock.time_ms += 100
        data = data or leader.get(freed)
    assert freed.rpartition("/")[2] not in leader.list_names("topics/t/log")
    them.roots.heap(where).put_if_absent(freed, data)
    if where != "a-0":
        elect(them.agreement, "b")
    for seed in (2, 3):
        write(them.other(seed), str(298 + seed))
    found = them.other(9)
    assert values(found, "t") == [b"%d" % number for number in range(302)]
    # It is told as what the other root lacks, and may as well be there.
    told = [one for one in broken(found) if "missing at" not in one]
    assert told == []
    list(verify(them.storage, SoundCopies(found.logs), with_contents=False, repair=True))
    assert broken(them.other(10)) == []
    assert values(them.other(11), "t") == values(found, "t")
