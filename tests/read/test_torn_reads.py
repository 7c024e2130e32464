"""A reader sees all of a transaction or nothing, even while it commits."""

from __future__ import annotations

import pytest

from tests.support.steps import ANYWHERE, begin, elsewhere, send, values
from txnlog.producer import Producer
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, VirtualClock

pytestmark = ANYWHERE


def commit_behind_an_open_transaction(store: Store) -> Producer:
    """A commit in two topics, in one of which it lies behind what this producer has open."""
    blocker = begin(store, "blocker")
    send(blocker, b"open")
    both = begin(store, "both")
    send(both, b"t part")
    send(both, b"wide part", topic="wide")
    both.commit_transaction()
    return blocker


@pytest.mark.rule("hazard 5")
def test_a_snapshot_over_topics_does_not_tear(store: Store, clock: VirtualClock) -> None:
    """Hazard 5: a commit in two topics, of which one lies behind an open transaction."""
    blocker = commit_behind_an_open_transaction(store)
    snapshot = elsewhere(store.storage, clock).snapshot(["wide", "t"])
    assert snapshot.end_offsets("wide") == dict.fromkeys(range(4), 0)
    assert snapshot.end_offsets("t") == {0: 0}
    # A scan of the one topic alone shows what is stable there.
    assert values(elsewhere(store.storage, clock), topic="wide") == [b"wide part"]
    blocker.abort_transaction()
    snapshot = elsewhere(store.storage, clock).snapshot(["wide", "t"])
    assert snapshot.scan("wide").record_count == 1
    assert snapshot.scan("t").record_count == 1


def test_one_append_of_many_partitions_does_not_tear_either(store: Store) -> None:
    """A plain flush is atomic over the partitions of its topic, behind an open transaction too."""
    blocker = begin(store, "blocker")
    send(blocker, b"open", topic="wide")
    with store.producer() as plain:
        for partition in range(4):
            plain.send("wide", b"plain", partition=partition)
    assert values(store, topic="wide") == []
    blocker.commit_transaction()
    assert values(store, topic="wide") == [b"open", *[b"plain"] * 4]


def test_a_cut_falls_before_what_a_checkpoint_holds(store: Store, clock: VirtualClock) -> None:
    """Hazard 5 for a reader that opens a topic by its checkpoint: recent appends are kept apart."""
    blocker = commit_behind_an_open_transaction(store)
    for topic in ("t", "wide"):
        store.logs.topic(topic).checkpoint()
    snapshot = elsewhere(store.storage, clock).snapshot(["wide", "t"])
    assert [snapshot.scan(topic).record_count for topic in ("wide", "t")] == [0, 0]
    blocker.abort_transaction()
    snapshot = elsewhere(store.storage, clock).snapshot(["wide", "t"])
    assert [snapshot.scan(topic).record_count for topic in ("wide", "t")] == [1, 1]


def test_a_transaction_that_commits_during_a_read_of_one_topic_is_not_torn(store: Store) -> None:
    """Its first append is listed, then it appends again and commits, then it is looked up."""
    producer = begin(store, "p")
    producer.send("t", b"1", partition=0)
    producer.flush()

    def meanwhile(request: str) -> None:
        if request == "list transactions/p" and len(done) == 0:
            done.append(request)
            producer.send("t", b"2", partition=0)
            producer.commit_transaction()

    done: list[str] = []
    reader = attach(FaultyStorage(store.storage, before_request=meanwhile), clock=VirtualClock())
    assert values(reader) in ([], [b"1", b"2"])
    assert done
    assert values(reader) == [b"1", b"2"]
