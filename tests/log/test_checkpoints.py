"""Checkpoints of a topic's log, and the cleaning behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

import txnlog
from tests.support.steps import another, append, begin, checkpoint, values
from tests.support.storage.disturbed_storages import HookedStorage
from txnlog.errors import (
    CorruptEntry,
    LogTruncated,
    StorageError,
    TxnlogError,
    UnsupportedVersion,
)
from txnlog.log import state_log
from txnlog.names import parse_log_file
from txnlog.store import Store, attach
from txnlog.testing import FaultyStorage, HeapStorage, VirtualClock

AGE_MS = 3_600_000

pytestmark = [
    pytest.mark.usefixtures("short_chapters"),
    pytest.mark.store(config={"log.cleanup.age.ms": AGE_MS}),
    pytest.mark.rule("L7"),
]


def test_checkpoints_stand_in_for_deleted_entries(store: Store, clock: VirtualClock) -> None:
    """Old entries go only behind a checkpoint that is old enough; nothing is lost with them."""
    for turn in range(70):
        append(store, b"%d" % turn)
    files = store.storage.list_names("topics/t/log")
    assert sum(name.endswith(".json") for name in files) == 71
    assert sum(name.endswith(".checkpoint") for name in files) == 2, "few were put"
    clock.time_ms += AGE_MS + 1
    for turn in range(70, 140):
        append(store, b"%d" % turn)
    files = store.storage.list_names("topics/t/log")
    assert sum(name.endswith(".json") for name in files) < 100
    expected = [b"%d" % turn for turn in range(140)]
    assert values(another(store)) == expected
    assert values(store) == expected


def test_nothing_is_put_behind_a_newest_entry_that_is_lost(tmp_path: Path) -> None:
    """Its checkpoint is there and can be read. Who writes is told what is missing, at once."""
    store = txnlog.open(str(tmp_path), create=True, clock=VirtualClock())
    store.topics.create("t", partitions=1)
    append(store, b"0")
    checkpoint(store)
    newest = max((tmp_path / "topics/t/log").glob("*.json"))
    newest.unlink()
    other = another(store)
    assert values(other) == [b"0"]
    with pytest.raises(TxnlogError, match=f"{newest.name} is missing, though a checkpoint tells"):
        append(other, b"1")


def test_superseded_checkpoints_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few stay; all do that may know the outcome of what the newest one calls undecided."""
    monkeypatch.setattr(state_log, "KEPT_CHECKPOINTS", 2)

    def count() -> int:
        names = store.storage.list_names("topics/t/log")
        return sum(name.endswith(".checkpoint") for name in names)

    append(store, b"0")
    checkpoint(store)
    producer = begin(store)
    producer.send("t", b"T")
    producer.flush()
    for turn in range(4):
        append(store, b"%d" % turn)
        checkpoint(store)
    assert count() == 4, "the four that call it undecided; not what came before it"
    producer.commit_transaction()
    append(store, b"5")
    checkpoint(store)
    assert count() == 2


def test_a_reader_that_is_overtaken_by_cleaning_goes_on(store: Store, clock: VirtualClock) -> None:
    """A reader that has seen only deleted entries reloads from the newest checkpoint."""
    append(store, b"0")
    slow = another(store)
    assert values(slow) == [b"0"]
    for turn in range(1, 5):
        append(store, b"%d" % turn)
        clock.time_ms += AGE_MS + 1
        checkpoint(store)
    assert values(slow) == [b"%d" % turn for turn in range(5)]


def test_a_damaged_checkpoint_is_passed_over(store: Store) -> None:
    """A checkpoint only saves reading: an older one or the entries do instead."""
    for turn in range(40):
        append(store, b"%d" % turn)
    name = next(n for n in store.storage.list_names("topics/t/log") if n.endswith(".checkpoint"))
    path = f"topics/t/log/{name}"
    damaged = bytearray(store.storage.get(path))
    damaged[100] ^= 1
    store.storage.delete([path])
    store.storage.put(path, bytes(damaged))
    assert len(values(another(store))) == 40


def test_a_cleaned_marker_is_not_taken_for_an_abort(store: Store, clock: VirtualClock) -> None:
    """A reader that saw the entry undecided takes a checkpoint when entry and marker are gone."""
    producer = begin(store)
    producer.send("t", b"committed")
    producer.flush()
    for number in range(40):
        append(store, b"%d" % number)
    old = another(store)
    assert values(old) == []
    producer.commit_transaction()
    clock.time_ms += AGE_MS + 1
    for number in range(40, 64):
        append(store, b"%d" % number)
    clock.time_ms += AGE_MS + 1
    for number in range(64, 96):
        append(store, b"%d" % number)
    with producer.transaction():
        producer.send("t", b"second")
    assert "00000000000000000001.commit" not in store.storage.list_names("topics/t/log")
    assert b"committed" in values(old)


def test_cleaning_spares_what_its_checkpoint_calls_undecided(
    store: Store, hooked: HookedStorage, clock: VirtualClock
) -> None:
    """A marker that comes while a checkpoint is written without it is not cleaned away."""
    crashing = HookedStorage(store.storage)
    producer = begin(another(store, crashing))
    producer.send("t", b"committed")
    crashing.interrupt_at(".commit")
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    writer = another(store, hooked)
    for number in range(35):
        append(writer, b"%d" % number)
    clock.time_ms += AGE_MS + 1

    settled: list[str] = []

    def settle(name: str) -> None:
        if name.endswith(".checkpoint"):
            hooked.rule = None
            settled.append(name)
            another(store).producer(transactional_id="p").init_transactions()

    hooked.rule = settle
    for number in range(35, 70):
        append(writer, b"%d" % number)
    assert settled
    assert b"committed" in values(another(store))


def test_short_lived_writers_clean_up(store: Store, clock: VirtualClock) -> None:
    """A chain of processes that each append a little keeps the log's folder small."""
    for _ in range(200):
        append(another(store), b"x")
        clock.time_ms += AGE_MS // 16
    found = [parse_log_file(name) for name in store.storage.list_names("topics/t/log")]
    assert sum(file is not None for file in found) < 120
    assert len(values(another(store))) == 200


@pytest.mark.parametrize("error", [StorageError, CorruptEntry, LogTruncated, UnsupportedVersion])
def test_a_checkpoint_that_fails_refuses_no_append(
    heap: HeapStorage, clock: VirtualClock, error: type[TxnlogError]
) -> None:
    """It is put behind one that is told as done; those that wait for other topics go on, too."""
    failed = []

    def before(text: str) -> None:
        if text.startswith("put_if_absent topics/t/log/") and text.endswith(".checkpoint"):
            failed.append(text)
            raise error("of another kind than the append")

    store = attach(heap, create=True, clock=clock)
    for topic in "tu":
        store.topics.create(topic)
    producer = attach(FaultyStorage(heap, before_request=before), clock=clock).producer()
    for number in range(40):
        for topic in "tu":
            producer.send(topic, b"%d" % number)
        producer.flush()
    assert failed
    for topic in "tu":
        assert values(another(store), topic) == [b"%d" % number for number in range(40)]
