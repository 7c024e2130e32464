"""A small store of everything that the doctor looks at, and copies of it to break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from txnlog import names
from txnlog.doctor.findings import Finding
from txnlog.names import LogFile, TopicPartition
from txnlog.state import topic_entries
from txnlog.state.group import OffsetCommit, OffsetsCommitted
from txnlog.state.segment import StoredSegment
from txnlog.state.topic_entries import Append
from txnlog.state.transaction import DECODER, TransactionState
from txnlog.storage import envelope
from txnlog.storage.base import Storage
from txnlog.store import attach
from txnlog.testing import Fault, FaultyStorage, HeapStorage, VirtualClock

DAY_MS = 86_400_000


def small_store() -> HeapStorage:
    """Topics ``a`` (2 partitions, and a checkpoint) and ``b``, group ``g``, some transactions.

    ``done`` has committed transactions 1 and 2 with offsets, ``undone`` was aborted, ``open`` is
    open in b.
    """
    storage = HeapStorage()
    store = attach(storage, create=True, clock=VirtualClock(seed=1))
    store.topics.create("a", partitions=2)
    store.topics.create("b")
    with store.producer() as producer:
        for number in range(40):
            producer.send("a", f"plain {number}", partition=number % 2)
            producer.flush()
    done = store.producer(transactional_id="done")
    done.init_transactions()
    for number in (1, 2):
        done.begin_transaction(application_id="app", version=number)
        done.send("a", "committed", partition=0)
        done.send("b", "committed")
        done.send_offsets_to_transaction({TopicPartition("a", 0): number}, "g")
        done.commit_transaction()
    undone = store.producer(transactional_id="undone")
    undone.init_transactions()
    undone.begin_transaction()
    undone.send("b", "aborted")
    undone.flush()
    undone.abort_transaction()
    open_ = store.producer(transactional_id="open")
    open_.init_transactions()
    open_.begin_transaction()
    open_.send("b", "undecided")
    open_.flush()
    return storage


SMALL = small_store()


def examine(storage: Storage, **options: object) -> list[Finding]:
    """The findings of an examination that are not sound; it must not write."""
    store = attach(storage, clock=VirtualClock(seed=9))
    found = store.examine(with_probe=False, **options)  # type: ignore[arg-type]
    return [finding for finding in found if finding.state != "ok"]


def violated_rules(storage: Storage) -> set[str | None]:
    return {finding.rule for finding in examine(storage) if finding.state == "damage"}


class BrokenStore:
    """A copy of the small store in which files can be replaced, checksums and all."""

    def __init__(self) -> None:
        self.storage = SMALL.copy()

    def entries(self, folder: str) -> list[int]:
        files = map(names.parse_log_file, self.storage.list_names(folder))
        return [found[0] for found in files if found and found[1] is LogFile.ENTRY]

    def replace(self, path: str, data: bytes) -> None:
        self.storage.delete([path])
        self.storage.put(path, data)

    def path(self, folder: str, number: int, kind: LogFile = LogFile.ENTRY) -> str:
        return f"{folder}/{names.log_file(number, kind)}"

    def append(self, topic: str, number: int) -> Append:
        path = self.path(names.topic_log(topic), number)
        entry = envelope.decode(self.storage.get(path), topic_entries.ENTRY_DECODER, path)
        assert isinstance(entry, Append)
        return entry

    def put_entry(self, folder: str, number: int, entry: msgspec.Struct) -> None:
        self.replace(self.path(folder, number), envelope.encode(entry))

    def state(self, transactional_id: str, back: int = 0) -> tuple[int, TransactionState]:
        """A state of an id, and its number; the newest if ``back`` is 0."""
        folder = names.transaction_log(transactional_id)
        number = self.entries(folder)[-1 - back]
        path = self.path(folder, number)
        return number, envelope.decode(self.storage.get(path), DECODER, path)

    def put_state(self, transactional_id: str, number: int, state: TransactionState) -> None:
        self.put_entry(names.transaction_log(transactional_id), number, state)

    def change_append(self, topic: str, number: int, **changes: int) -> None:
        entry = self.append(topic, number)
        first, *rest = entry.segments
        of_stored = set(StoredSegment.__struct_fields__)
        stored = {name: value for name, value in changes.items() if name in of_stored}
        place = {name: value for name, value in changes.items() if name not in of_stored}
        changed = msgspec.structs.replace(
            first, **place, stored=msgspec.structs.replace(first.stored, **stored)
        )
        self.put_entry(
            names.topic_log(topic),
            number,
            msgspec.structs.replace(entry, segments=(changed, *rest)),
        )


A_LOG, B_LOG, G_LOG = names.topic_log("a"), names.topic_log("b"), names.group_log("g")


def offsets(partition: TopicPartition, start: int | None, offset: int) -> OffsetsCommitted:
    commit = OffsetCommit(*partition, offset, compare=True, start=start)
    return OffsetsCommitted("0" * 32, 1_700_000_000_000, (commit,))


def put_checkpoint(
    broken: BrokenStore, kind: Literal["topic", "group"], name: str, change: Callable[[Any], object]
) -> str:
    """Put a checkpoint that is as it should be but for one change; returns its path."""
    store = attach(broken.storage, clock=VirtualClock(seed=5))
    log = store.logs.log(kind, name)
    log.refresh()
    store.logs.settlement.settle([log])
    change(log._state)
    path = log.log.path(log.next_entry - 1, LogFile.CHECKPOINT)
    broken.replace(path, envelope.encode(log._state))
    return path


def change_nothing(_: object) -> None:
    """No change."""


def wrong_offset(broken: BrokenStore) -> None:
    broken.change_append("a", 40, base_offset=17)


class Refusing(FaultyStorage):
    """Does not allow requests whose text holds any of these."""

    def __init__(self, inner: Storage, *refused: str) -> None:
        super().__init__(inner)
        self.refused = refused

    def _fault(self, text: str) -> Fault | None:
        return Fault.FAIL if any(part in text for part in self.refused) else None
