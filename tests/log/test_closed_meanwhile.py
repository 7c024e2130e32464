"""An entry that was put in time, whose chapter is closed before its writer looks: it counts.

Its writer cannot tell it from one that was put into a freed name. Appends are recognised; what
cannot be is never taken for refused.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.log.settling import settle_early
from tests.support.steps import another, append, begin, send, values
from txnlog.admin.merge_topic import merge_topic
from txnlog.errors import StorageError
from txnlog.log.chapters import CHAPTER, STAY_OPEN
from txnlog.names import TopicPartition
from txnlog.state.group import OffsetCommit
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage

MANY = (2 + STAY_OPEN) * CHAPTER
"""After so many entries the chapter of an earlier one is closed."""
T0 = TopicPartition("t", 0)


class Overtaken(FaultyStorage):
    """Lets others go on between the next put of an entry in a folder and its response."""

    folder = ""
    others: Callable[[], object] = print

    def put_if_absent(self, name: str, data: bytes) -> bool:
        done = super().put_if_absent(name, data)
        if self.folder and name.startswith(self.folder) and name.endswith(".json"):
            self.folder = ""
            self.others()
        return done


@pytest.fixture
def heap() -> HeapStorage:
    return HeapStorage(like_disk=True)


pytestmark = [pytest.mark.store(on="heap"), pytest.mark.rule("L17")]


@pytest.fixture
def overtaken(heap: HeapStorage) -> Overtaken:
    return Overtaken(heap)


@pytest.fixture
def sleeper(store: Store, overtaken: Overtaken) -> Store:
    return attach(overtaken, clock=store.logs.clock)


def found_offset(store: Store) -> int | None:
    log = store.logs.fresh_group("g")
    with log.lock:
        state = log.state
        found = state.offset_of(*T0)
    return found.offset if found else None


def fill_chapters(store: Store) -> None:
    for _ in range(MANY):
        append(store, b"later")


def test_what_was_merged_is_not_deleted(store: Store, overtaken: Overtaken, sleeper: Store) -> None:
    """The segments that it replaced are not found any more, since it has replaced them itself."""
    for number in range(8):
        append(store, b"%d" % number)
    overtaken.folder, overtaken.others = "topics/t/log/", lambda: fill_chapters(store)
    assert [merge.segment_count for merge in merge_topic(sleeper.logs, "t")] == [8]
    assert values(another(store))[:9] == [*(b"%d" % n for n in range(8)), b"later"]


def test_offsets_that_were_moved_are_not_said_to_be_refused(
    store: Store, overtaken: Overtaken, sleeper: Store
) -> None:
    append(store, b"a", b"b")
    group = store.logs.group("g")
    group.commit([OffsetCommit("t", 0, 2)])

    def go_on() -> None:
        for _ in range(MANY):
            group.commit([OffsetCommit("t", 1, 0)])
            group.checkpoint_if_due()

    overtaken.folder, overtaken.others = "groups/g/", go_on
    with pytest.raises(StorageError, match="may or may not count"):
        sleeper.groups.reset_offsets("g", "t", to="earliest")
    assert found_offset(another(store)) == 0


def test_a_topic_that_was_made_anew_is_not_deleted_with_the_old_one(
    store: Store, overtaken: Overtaken, sleeper: Store
) -> None:
    append(store, b"old")

    def make_anew() -> None:
        store.topics.create("t")
        fill_chapters(store)

    overtaken.folder, overtaken.others = "topics/t/log/", make_anew
    with pytest.raises(StorageError, match="may or may not count"):
        sleeper.topics.delete("t")
    assert values(another(store)) == [b"later"] * MANY


def test_a_log_is_cleaned_though_something_is_always_undecided(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    """Each transaction ends when the next one is open: no checkpoint stands behind all of them."""
    settle_early(monkeypatch)
    producers = [begin(store, name, 600_000) for name in "pq"]
    for turn in range(20):
        send(producers[turn % 2], b"%d" % turn)
        for _ in range(6):
            append(store, b"")
        other = producers[(turn + 1) % 2]
        if turn > 0:
            other.commit_transaction()
            other.begin_transaction()
    log = store.logs.topic("t")
    assert log.next_entry > 120
    assert log.log.listing().entries[0] > 60


def test_whose_time_is_over_does_not_say_that_nothing_was_written(
    store: Store, overtaken: Overtaken, sleeper: Store
) -> None:
    """Its first entry was closed before it looked, and the time is over after that."""
    append(store, b"a", b"b")
    group = store.logs.group("g")
    group.commit([OffsetCommit("t", 0, 2)])

    def go_on() -> None:
        for _ in range(MANY):
            group.commit([OffsetCommit("t", 1, 0)])
            group.checkpoint_if_due()
        store.logs.clock.sleep(3_600)

    overtaken.folder, overtaken.others = "groups/g/", go_on
    with pytest.raises(StorageError, match=r"which was put, may or may not count: try again"):
        sleeper.logs.group("g").commit([OffsetCommit("t", 0, 1)])
    assert found_offset(another(store)) == 1
