"""What Kafka's replication is tested for, on roots in memory that go down and come back.

Transactions are committed through a store on them, each with one number.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.replication.replica_world import LAG_MS, Roots
from txnlog.errors import NotEnoughReplicas, TxnlogError
from txnlog.replication.roots import agreement as agreements
from txnlog.replication.roots import epochs, root_join
from txnlog.replication.roots.election import take_out
from txnlog.replication.roots.epochs import MIN_INSYNC, Epoch, Proposer
from txnlog.replication.roots.root_join import join
from txnlog.store import attach
from txnlog.testing import VirtualClock

pytestmark = pytest.mark.rule("R5", "R6")


class Cluster:
    """A store on so many roots, a job that commits to it, and its judge: what was acknowledged."""

    def __init__(self, count: int, min_insync: int = 1) -> None:
        self.roots = Roots(count, {MIN_INSYNC: str(min_insync)})
        self.clock = VirtualClock()
        self.acknowledged: list[int] = []
        self.storage = self.roots.plain(self.clock)
        self.storage.trust(probed=True)
        self.store = attach(self.storage, create=True, clock=self.clock)
        self.store.topics.create("t", partitions=1)

    def commit(self, number: int) -> None:
        """A transaction of an instance of its own, as a job that was started again."""
        producer = self.store.producer(transactional_id="job")
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"%d" % number)
        self.acknowledged.append(number)

    def refuses(self, number: int) -> bool:
        """Whether it is not acknowledged, after all patience."""
        with pytest.raises(TxnlogError) as raised:
            self.commit(number)
        causes = [raised.value, raised.value.__cause__, raised.value.__context__]
        return any(isinstance(cause, NotEnoughReplicas) for cause in causes)

    def lose(self, *roots: str) -> None:
        self.roots.down.update(roots)

    def bring_back(self, root: str) -> None:
        self.roots.down.discard(root)

    def join(self, root: str) -> None:
        join(self.storage.agreement, root, f"heap://{root}")

    def check(self, in_sync: str, *refused: int) -> None:
        """All that was acknowledged is read, by somebody new; and who is in sync, the leader first.

        What was refused may be there or not: whoever was not told does not know.
        """
        store = attach(self.roots.plain(self.clock), clock=self.clock)
        found = [int(value) for value in store.scan("t").to_arrow()["value"].to_pylist()]
        assert [number for number in found if number not in refused] == self.acknowledged
        assert len(found) == len({*found})
        epoch = self.roots.epoch()
        assert epoch.leader[0] + "".join(sorted(m[0] for m in epoch.in_sync[1:])) == in_sync


def test_the_leader_fails_with_followers_in_sync() -> None:
    """One of them leads within the time, again and again until one is left."""
    cluster = Cluster(3)
    cluster.commit(1)
    for gone, left in (("a", "bc"), ("b", "c")):
        began_ms = cluster.clock.time_ms
        cluster.lose(gone)
        cluster.commit(ord(gone))
        assert cluster.clock.time_ms - began_ms < 2 * LAG_MS
        cluster.check(left)


def test_the_leader_fails_without_a_follower_in_sync() -> None:
    """Nobody else may lead; what was acknowledged waits for the leader, and is all there."""
    cluster = Cluster(2)
    cluster.lose("b")
    cluster.commit(1)
    cluster.bring_back("b")
    cluster.lose("a")
    assert cluster.refuses(2)
    assert cluster.roots.epoch().leader == "a-0"
    cluster.bring_back("a")
    cluster.commit(3)
    cluster.check("a", 2)
    cluster.join("b")
    cluster.lose("a")
    cluster.commit(4)
    cluster.check("b", 2)


@pytest.mark.parametrize("first", ["a", "b"])
def test_all_fail_one_after_the_other_and_come_back(first: str) -> None:
    """Only the one that was left can lead, whichever comes back first."""
    cluster = Cluster(2)
    cluster.commit(1)
    cluster.lose("a")
    cluster.commit(2)
    cluster.lose("b")
    assert cluster.refuses(3)
    cluster.bring_back(first)
    if first == "a":
        assert cluster.refuses(4)
        cluster.bring_back("b")
    cluster.commit(5)
    cluster.bring_back("a")
    cluster.join("a")
    cluster.lose("b")
    cluster.commit(6)
    cluster.check("a", 3, 4)


@pytest.mark.parametrize("first", ["a", "b"])
def test_all_fail_at_once_and_come_back(first: str) -> None:
    """Both are in sync: whoever comes back first goes on, with all that was acknowledged."""
    cluster = Cluster(2)
    cluster.commit(1)
    cluster.lose("a", "b")
    assert cluster.refuses(2)
    cluster.bring_back(first)
    cluster.commit(3)
    cluster.check(first, 2)
    second = "b" if first == "a" else "a"
    cluster.bring_back(second)
    cluster.commit(4)
    cluster.join(second)
    cluster.lose(first)
    cluster.commit(5)
    cluster.check(second, 2)


def test_min_insync_is_not_met() -> None:
    """Nothing is acknowledged, all that was is read; a root that comes back is enough."""
    cluster = Cluster(3, min_insync=2)
    cluster.commit(1)
    cluster.lose("c")
    cluster.commit(2)
    cluster.lose("b")
    assert cluster.refuses(3)
    cluster.check("a", 3)
    cluster.bring_back("b")
    cluster.join("b")
    cluster.commit(4)
    cluster.check("ab", 3)


def test_a_slow_follower_is_waited_for() -> None:
    """Acknowledged writes are there, too; it leaves the set when its requests fail, not before."""
    cluster = Cluster(2)

    class Slow(set[str]):
        def __contains__(self, root: object) -> bool:
            if root == "b":
                cluster.clock.sleep(0.2)
            return super().__contains__(root)

    cluster.roots.down = Slow()
    began_ms = cluster.clock.time_ms
    cluster.commit(1)
    assert cluster.clock.time_ms - began_ms > 1000
    cluster.check("ab")
    cluster.lose("b")
    cluster.commit(2)
    cluster.check("a")


def test_what_an_earlier_leader_had_decided_is_not_taken_for_what_this_one_has() -> None:
    """Two writers have died: one gave c what a had decided, one b what b has decided since."""
    roots, clock = Roots(3), VirtualClock()
    roots.heap("a-0").put_if_absent("f/1", b"old")
    roots.heap("c-0").put_if_absent("f/1", b"old")
    roots.down.add("a")
    roots.plain(clock).put("x", b"")
    epoch = roots.epoch()
    assert (epoch.leader, epoch.in_sync) == ("b-0", ("b-0", "c-0"))
    roots.heap("b-0").put_if_absent("f/1", b"new")
    reader = roots.plain(clock)
    assert reader.list_names("f") == ["1"]
    assert reader.get("f/1") == b"new"
    assert roots.epoch().in_sync == ("b-0",)  # else c could be elected, and show another history
    roots.down.clear()
    join(reader.agreement, "c", "heap://c")
    assert not reader.agreement.may_differ(roots.epoch())


def shown_of_a_root_that_has_copied_from_another_leader(patch: pytest.MonkeyPatch) -> list[bytes]:
    """What readers are shown: c copies from a, then b leads, then c, if it is in sync."""
    roots, clock = Roots(3), VirtualClock()
    agreement = roots.plain(clock).agreement
    take_out(agreement, "c")
    roots.heap("a-0").put_if_absent("f/1", b"old")  # its writer has died
    finish = root_join._finish

    def elect_first(*arguments: Any) -> Epoch:
        roots.down.add("a")
        roots.plain(clock).put("x", b"")
        roots.heap("b-0").put_if_absent("f/1", b"new")  # the next one, too
        return finish(*arguments)

    patch.setattr(root_join, "_finish", elect_first)
    with suppress(NotEnoughReplicas):
        join(agreement, "c", "heap://c")
    reader = roots.plain(clock)
    assert reader.list_names("f") == ["1"]
    shown = [reader.get("f/1")]
    roots.down.add("b")
    with suppress(TxnlogError):
        shown.append(roots.plain(clock).get("f/1"))
    return shown


def test_what_was_copied_from_another_leader_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broken variant of this part of R4 shows two histories."""
    with monkeypatch.context() as patch:
        assert shown_of_a_root_that_has_copied_from_another_leader(patch) == [b"new"]

    def elected(epoch: Epoch, *given: Any, **how: Any) -> Epoch:
        return replace(epochs.elected(epoch, *given, **how), joining=epoch.joining)

    def joined(epoch: Epoch, member: str, since: int, _: int, who: Proposer) -> Epoch | None:
        return epochs.joined(epoch, member, since, epoch.leader_since, who)

    monkeypatch.setattr(agreements, "elected", elected)
    monkeypatch.setattr(root_join, "joined", joined)
    shown = shown_of_a_root_that_has_copied_from_another_leader(monkeypatch)
    assert shown == [b"new", b"old"]
