"""A disk that fails to sync: what is not durable is never reported as done (hazard 2)."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.steps import another, send, values
from txnlog import AcksValue
from txnlog.errors import CommitStateUnknown, InvalidTxnState, ObjectNotFound, StorageError
from txnlog.log.sequence_log import SequenceLog
from txnlog.names import LogFile
from txnlog.producer import Producer
from txnlog.state.transaction import Outcome
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.create_once import create_once
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

pytestmark = pytest.mark.rule("hazard 1", "hazard 2")

ENTRY = "topics/t/log/00000000000000000001.json"


class Disk:
    """Notes which folders and files are synced, and fails to sync the folders in ``broken``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broken: set[str] = set()
        self.failures = 1_000_000
        self.synced: list[str] = []
        """Folders, relative to the root, or "file"; those that failed with an exclamation mark."""
        self._real = os.fsync

    def fsync(self, descriptor: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self.synced.append("file")
            return self._real(descriptor)
        name = os.path.relpath(Path(f"/proc/self/fd/{descriptor}").readlink(), self.root)
        if name in self.broken and self.failures > 0:
            self.failures -= 1
            self.synced.append(f"{name}!")
            raise OSError(errno.EIO, "Input/output error")
        self.synced.append(name)
        return self._real(descriptor)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    root = (tmp_path / "above" / "store").resolve()
    disk = Disk(root)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


@pytest.fixture
def storage(disk: Disk) -> LocalStorage:
    return LocalStorage(str(disk.root))


@pytest.fixture
def store(storage: LocalStorage, clock: VirtualClock) -> Store:
    store = attach(storage, create=True, clock=clock)
    store.topics.create("t")
    return store


def begin(store: Store) -> Producer:
    """A producer with an open transaction that has placed a record; it does not retry."""
    producer = store.producer(transactional_id="p", delivery_timeout_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    send(producer, b"x")
    return producer


# -- the storage ---------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["a/b", "a", ".", "..", "../.."])
def test_a_create_that_is_not_durable_is_an_error(
    storage: LocalStorage, disk: Disk, broken: str
) -> None:
    """Whichever folder's sync fails, up to those above the root; and so for uploads."""
    disk.broken = {broken}
    with pytest.raises(StorageError, match=r"creating .*/a/b/one failed: .*check the disk"):
        storage.put_if_absent("a/b/one", b"x")
    with pytest.raises(StorageError, match="check the disk"):
        storage.put("a/b/two", b"x")
    with pytest.raises(StorageError, match="check the disk"), storage.upload("a/b/three") as upload:
        upload.write(b"x")
    disk.broken.clear()
    disk.synced.clear()
    assert storage.put_if_absent("a/b/four", b"x")
    assert disk.synced[:6] == ["file", "a/b", "a", ".", "..", "../.."]


def test_after_a_failure_everything_is_synced_anew(storage: LocalStorage, disk: Disk) -> None:
    """A device that failed may have lost what it had called durable: folders' names too."""
    storage.put("a/b/one", b"x")
    disk.synced.clear()
    storage.put("a/b/two", b"x")
    assert disk.synced == ["file", "a/b"]
    disk.broken = {"a/b"}
    with pytest.raises(StorageError):
        storage.put("a/b/three", b"x")
    disk.broken.clear()
    disk.synced.clear()
    storage.put("a/b/four", b"x")
    assert disk.synced[:4] == ["file", "a/b", "a", "."]


def test_folders_above_the_root_are_synced_once(storage: LocalStorage, disk: Disk) -> None:
    """They may be as new as the root. A folder that goes and comes back changes nothing there."""
    storage.put("a/one", b"x")
    assert disk.synced[:5] == ["file", "a", ".", "..", "../.."]
    storage.delete(["a/one"])
    disk.synced.clear()
    storage.put("a/two", b"x")
    assert disk.synced == ["file", "a", "."]
    shutil.rmtree(disk.root.parent)
    disk.synced.clear()
    storage.put("a/three", b"x")
    assert disk.synced[:5] == ["file", "a", ".", "..", "../.."]


def test_a_round_of_puts_syncs_a_folder_once(storage: LocalStorage, disk: Disk) -> None:
    """When all of them are linked to their names, and before anything is told of them."""
    storage.put("a/b/before", b"x")
    storage.put("a/c/before", b"x")
    links: list[int] = []
    real = os.link

    def link(*names: str, **folders: Any) -> None:
        real(*names, **folders)
        links.append(len([name for name in disk.synced if name != "file"]))

    uploads = [storage.upload(f"a/b/{number}") for number in range(5)]
    disk.synced.clear()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "link", link)
        storage.put_round([*(one.close for one in uploads), lambda: storage.put("a/c/one", b"x")])
    assert sorted(disk.synced) == ["a/b", "a/c", *["file"] * 6]
    assert links == [0] * 6, "no folder before the last link"
    disk.synced.clear()
    storage.put("a/b/after", b"x")
    assert disk.synced == ["file", "a/b"], "behind the round each is synced at once"
    disk.synced.clear()
    storage.without_fsync().put_round([lambda: storage.without_fsync().put("a/b/relaxed", b"x")])
    assert disk.synced == []


@pytest.mark.parametrize("broken", ["a/b", "a", "."])
def test_a_round_whose_folder_is_not_synced_is_an_error(
    storage: LocalStorage, disk: Disk, broken: str
) -> None:
    """A visible object is not reported as done; afterwards everything is synced again."""
    disk.broken = {broken}
    with pytest.raises(StorageError, match=r"syncing .*/a/b failed: .*check the disk"):
        storage.put_round([lambda: storage.put("a/b/one", b"x")])
    assert storage.get("a/b/one") == b"x"
    disk.broken.clear()
    disk.synced.clear()
    storage.put("a/b/two", b"x")
    assert disk.synced[:4] == ["file", "a/b", "a", "."]


def test_a_commit_of_many_files_syncs_each_folder_once(store: Store, disk: Disk) -> None:
    """A large segment with its indexes; the markers of a transaction that flushed often."""
    producer = begin(store)
    for _ in range(3):
        send(producer, b"x")
    disk.synced.clear()
    producer.commit_transaction()
    folders = [name for name in disk.synced if name != "file"]
    assert disk.synced.count("file") == 2 + 4
    assert folders == ["transactions/p", "topics/t/log", "transactions/p"]
    store.topics.create("large", config={"record.format": "columns"})
    plain = store.producer()
    plain.send("large", b"the first, for which folders are made")
    plain.flush()
    rng = np.random.default_rng(1)
    for _ in range(8):
        plain.send_batch("large", pa.record_batch({"value": [rng.bytes(900_000)]}))
    disk.synced.clear()
    plain.flush()
    (data,) = {name for name in disk.synced if name.startswith("topics/large/data")}
    assert store.topics.segments("large")[-1].batch_count > 1
    assert disk.synced.count(data) == 1
    assert disk.synced.count("file") == 4


def test_markers_whose_round_is_not_durable(store: Store, disk: Disk) -> None:
    """The commit stands, and is not called complete before they are (invariant T4)."""
    producer = begin(store)
    disk.broken = {"topics/t/log"}
    producer.commit_transaction()
    assert store.transactions.describe("p").status == "PrepareCommit"
    disk.broken.clear()
    assert values(another(store)) == [b"x"]
    disk.synced.clear()
    with producer.transaction():
        send(producer, b"y")
    assert store.transactions.describe("p").status == "CompleteCommit"
    assert "topics/t/log" in disk.synced
    assert values(another(store)) == [b"x", b"y"]


def test_uploads_whose_round_is_not_durable(store: Store, disk: Disk) -> None:
    """Nothing is placed that a power cut could take."""
    producer = begin(store)
    producer.send("t", b"y", partition=0)
    disk.broken = {"topics/t/data/0"}
    with pytest.raises(StorageError, match="syncing"):
        producer.flush()
    disk.broken.clear()
    producer.abort_transaction()
    assert values(another(store)) == []
    assert store.logs.topic("t").next_entry == 2


def test_confirming_syncs_the_file_and_its_folders(storage: LocalStorage, disk: Disk) -> None:
    """Also for what somebody else has put, who may have died before the sync."""
    LocalStorage(storage.url, fsync=False).put("a/b/one", b"x")
    disk.synced.clear()
    storage.confirm("a/b/one")
    assert disk.synced[:4] == ["file", "a/b", "a", "."]
    disk.broken = {"a"}
    with pytest.raises(StorageError, match=r"syncing .*/a/b/one failed: .*check the disk"):
        LocalStorage(storage.url).confirm("a/b/one")
    with pytest.raises(ObjectNotFound):
        storage.confirm("a/b/none")
    disk.synced.clear()
    storage.without_fsync().confirm("a/b/one")
    assert disk.synced == []


def test_folders_above_the_root_that_cannot_be_synced_by_us_are_passed_over(
    storage: LocalStorage, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that may not be read cannot be synced; that is no reason to refuse the store."""
    real = os.open

    def guarded(path: str, flags: int, *rest: int, **folder: Any) -> int:
        if path == str(disk.root.parent):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, *rest, **folder)

    monkeypatch.setattr(os, "open", guarded)
    assert storage.put_if_absent("a", b"x")
    assert disk.synced[:3] == ["file", ".", "../.."]


# -- create_once ---------------------------------------------------------------------------------


def test_an_object_of_ours_counts_when_it_is_durable(
    storage: LocalStorage, disk: Disk, clock: VirtualClock
) -> None:
    """Its put has failed and it can be read back: it is ours once its folder has been synced."""
    storage.put("a/before", b"x")
    disk.broken = {"a"}
    with pytest.raises(StorageError, match="check the disk"):
        create_once(storage, "a/one", b"nonce 1", clock)
    assert storage.get("a/one") == b"nonce 1"
    with pytest.raises(StorageError, match="syncing"):
        create_once(storage, "a/one", b"nonce 1", clock)
    assert not create_once(storage, "a/one", b"nonce 2", clock)
    disk.failures = 3
    disk.synced.clear()
    assert create_once(storage, "a/two", b"nonce 3", clock)
    assert disk.synced[:2] == ["file", "a!"]
    assert disk.synced.count("a!") == 3
    assert "a" in disk.synced[disk.synced.index("a!") :]


class Silent(ForwardingStorage):
    """Each request takes 90 s and gets no answer; puts take effect all the same, if they are to."""

    def __init__(self, clock: VirtualClock, arrives: bool) -> None:
        super().__init__(HeapStorage())
        self.clock = clock
        self.arrives = arrives
        self.asked: list[str] = []

    def _wait(self, kind: str) -> None:
        self.asked.append(kind)
        self.clock.sleep(90)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._wait("put")
        if self.arrives:
            self.inner.put_if_absent(name, data)
        raise StorageError("no answer to a put")

    def get(self, name: str) -> bytes:
        self._wait("get")
        if not self.arrives:
            raise StorageError("no answer to a get")
        return self.inner.get(name)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_server_that_is_silent_is_asked_for_no_longer_than_a_request_takes(
    clock: VirtualClock, arrives: bool
) -> None:
    """Attempts are over after two seconds, but what was put is looked for: the caller repeats."""
    storage = Silent(clock, arrives)
    if arrives:
        assert create_once(storage, "a/one", b"nonce 1", clock)
    else:
        with pytest.raises(StorageError, match="no answer to a get"):
            create_once(storage, "a/one", b"nonce 1", clock)
    assert storage.asked == ["put", "get"]


# -- what producers are told ---------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["all", 1])
def test_a_flush_that_is_not_durable_is_not_acknowledged(
    store: Store, disk: Disk, clock: VirtualClock, acks: AcksValue
) -> None:
    """Nor when it is called again and finds its records placed: not before they are safe."""
    producer = store.producer(acks=acks, delivery_timeout_ms=0)
    producer.send("t", b"x")
    disk.broken = {"topics/t/log"}
    for _ in range(2):
        with pytest.raises(CommitStateUnknown, match="may or may not"):
            producer.flush()
    assert disk.root.joinpath(ENTRY).exists()
    disk.broken.clear()
    disk.synced.clear()
    producer.flush()
    assert "topics/t/log" in disk.synced
    assert values(another(store, LocalStorage(store.url))) == [b"x"]
    producer.send("t", b"y")
    producer.flush()
    assert values(another(store, LocalStorage(store.url))) == [b"x", b"y"]


def test_an_upload_that_is_not_durable_is_not_acknowledged(
    store: Store, disk: Disk, clock: VirtualClock
) -> None:
    """The segment's folder fails to sync: nothing is placed."""
    producer = store.producer(delivery_timeout_ms=0)
    producer.send("t", b"x")
    disk.broken = {"topics/t/data/0"}
    with pytest.raises(StorageError, match="check the disk"):
        producer.flush()
    disk.broken.clear()
    assert values(another(store, LocalStorage(store.url))) == []
    assert not disk.root.joinpath(ENTRY).exists()


def test_a_commit_that_is_not_durable_is_not_reported(
    store: Store, disk: Disk, clock: VirtualClock
) -> None:
    """Called again while the disk is broken it is still unknown; later it is told, and once."""
    producer = begin(store)
    disk.broken = {"transactions/p"}
    for _ in range(2):
        with pytest.raises(CommitStateUnknown, match="may or may not"):
            producer.commit_transaction()
    disk.broken.clear()
    disk.synced.clear()
    producer.commit_transaction()
    assert "transactions/p" in disk.synced
    assert values(another(store, LocalStorage(store.url))) == [b"x"]


def test_a_commit_that_is_not_durable_is_not_told_to_who_aborts(
    store: Store, disk: Disk, clock: VirtualClock
) -> None:
    """It is there, so it cannot be aborted; that it has succeeded is said when it is safe."""
    producer = begin(store)
    disk.broken = {"transactions/p"}
    with pytest.raises(CommitStateUnknown):
        producer.commit_transaction()
    with pytest.raises(CommitStateUnknown):
        producer.abort_transaction()
    assert not list(disk.root.joinpath("topics/t/log").glob("*.commit"))


class Late(LocalStorage):
    """Puts of entries of ``p`` are lost while ``losing``; the lost one lands before the next."""

    losing = False
    lost: tuple[str, bytes] | None = None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.losing and name.startswith("transactions/p"):
            self.lost = name, data
            raise StorageError("the connection was reset")
        if self.lost is not None:
            LocalStorage(self.url, fsync=False).put(*self.lost)
            self.lost = None
        return super().put_if_absent(name, data)


def test_an_abort_learns_of_a_late_commit_when_that_is_durable(
    store: Store, disk: Disk, clock: VirtualClock
) -> None:
    """The commit, thought lost, landed just before the abort: it is told once it is safe."""
    late = Late(store.url)
    producer = begin(attach(late, clock=clock))
    late.losing = True
    with pytest.raises(CommitStateUnknown):
        producer.commit_transaction()
    late.losing = False
    disk.broken = {"transactions/p"}
    with pytest.raises(CommitStateUnknown):
        producer.abort_transaction()
    disk.broken.clear()
    with pytest.raises(InvalidTxnState, match="had succeeded"):
        producer.abort_transaction()
    assert values(another(store, LocalStorage(store.url))) == [b"x"]


def test_a_marker_of_somebody_elses_counts_when_it_is_durable(
    storage: LocalStorage, disk: Disk, clock: VirtualClock
) -> None:
    """Invariant T4: the id moves on when all markers are there, also after a power cut."""
    log = SequenceLog(storage, "topics/t/log", clock)
    LocalStorage(storage.url, fsync=False).put(log.path(0, LogFile.COMMIT), b"of an older release")
    disk.synced.clear()
    log.mark(0, Outcome.COMMIT, b"ours")
    assert "topics/t/log" in disk.synced
    disk.broken = {"topics/t/log"}
    with pytest.raises(StorageError, match="check the disk"):
        log.mark(0, Outcome.COMMIT, b"ours")


def test_an_init_that_is_not_durable_is_not_reported(store: Store, disk: Disk) -> None:
    """Invariant T1: an epoch that a power cut takes back could be given out again."""
    store.producer(transactional_id="p").init_transactions()
    producer = store.producer(transactional_id="p", delivery_timeout_ms=0)
    disk.broken = {"transactions/p"}
    for _ in range(2):
        with pytest.raises(StorageError, match="check the disk"):
            producer.init_transactions()
    disk.broken.clear()
    disk.synced.clear()
    producer.init_transactions()
    assert "transactions/p" in disk.synced
    assert store.transactions.describe("p").producer_epoch == 1


def test_nobody_marks_entries_for_a_decision_that_is_not_durable(
    store: Store, disk: Disk, clock: VirtualClock
) -> None:
    """Nor believes it, however old it is: a power cut would take it, and leave its markers here."""
    producer = begin(store)
    disk.broken = {"transactions/p"}
    with pytest.raises(CommitStateUnknown):
        producer.commit_transaction()
    for later_ms in (0, 30_000):
        clock.time_ms += later_ms
        assert values(another(store, LocalStorage(store.url))) == []
    with pytest.raises(CommitStateUnknown, match="may or may not"):
        another(store).transactions.abort("p", reason="a test")
    assert not list(disk.root.joinpath("topics/t/log").glob("*.commit"))
    disk.broken.clear()
    assert values(another(store, LocalStorage(store.url))) == [b"x"]
    assert len(list(disk.root.joinpath("topics/t/log").glob("*.commit"))) == 1
