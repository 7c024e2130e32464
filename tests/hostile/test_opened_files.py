"""What somebody has put in the place of a store's files: nothing waits, fills memory or leads out.

What would hang or take memory is opened in a child with limits of both.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pytest

import txnlog
from tests.support.read.filtered_stores import typed_store
from tests.support.runtime.forked_child import in_child
from txnlog.admin.maintenance import MaintenanceFailure
from txnlog.errors import InvalidOption, StorageError, TxnlogError
from txnlog.inspect.files import open_segment_file, read_file
from txnlog.replication import Follower
from txnlog.storage.adapters import inside
from txnlog.storage.adapters.local import LocalStorage

LONGEST_S = 10
MOST_BYTES = 512 << 20
SECRET = b"-----BEGIN PRIVATE KEY-----"
SPARSE_BYTES = 200 << 30


@pytest.fixture(params=["descriptors", "paths"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to reach names: the second one is for systems that have no other."""
    monkeypatch.setattr(inside, "BY_DESCRIPTOR", request.param == "descriptors")
    return str(request.param)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a topic and a record."""
    made = tmp_path_factory.mktemp("template") / "store"
    store = txnlog.open(made, create=True)
    store.topics.create("orders", partitions=1)
    with store.producer() as producer:
        producer.send("orders", b"1")
    return made


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    """One of its own for a test."""
    return shutil.copytree(template, tmp_path / "store")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside of the store."""
    path = tmp_path / "outside" / "secret"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


def only(root: Path, pattern: str) -> Path:
    (found,) = root.glob(pattern)
    return found


def limited(work: Callable[[], object]) -> str:
    """What came of it in a child that may take little time and memory."""

    def run() -> object:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        signal.alarm(LONGEST_S)
        return work()

    return in_child(run)


def _as_fifo(path: Path) -> None:
    os.mkfifo(path)


def _as_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _as_sparse(path: Path) -> None:
    with path.open("wb") as file:
        os.truncate(file.fileno(), SPARSE_BYTES)


def _as_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_RDONLY)
        made.bind(f"/proc/self/fd/{folder}/{path.name}")  # the path itself may be too long
        os.close(folder)


def _as_folder(path: Path) -> None:
    path.mkdir()


KINDS = {
    _as_fifo: "is a FIFO",
    _as_endless: "is a symbolic link",
    _as_sparse: "has 214,748,364,800 bytes",
    _as_socket: "is a socket",
    _as_folder: "a folder stands where a file is needed",
}


def read_all(root: Path) -> None:
    txnlog.open(root).snapshot(["orders"]).scan("orders").to_arrow()


def examine(root: Path) -> list[str]:
    return [str(one) for one in txnlog.open(root).examine(with_probe=False) if one.state != "ok"]


@pytest.mark.parametrize(
    "name", ["txnlog.json", "topics/orders/log/*0.json", "topics/orders/data/**/*.log"]
)
def test_what_is_no_file_is_refused_at_once(template: Path, tmp_path: Path, name: str) -> None:
    """Neither waited for nor read, whatever reads it; the error says which file it is."""
    for number, (place, kind) in enumerate(KINDS.items()):
        root = shutil.copytree(template, tmp_path / f"{number}")
        path = only(root, name)
        path.unlink()
        place(path)
        told = limited(partial(read_all, root))
        assert path.name in told
        if name.endswith("0.json") and place is not _as_sparse:
            assert told.startswith("CorruptEntry: ")  # no listing shows it
        elif name.endswith(".log") and place is _as_sparse:
            assert told.startswith("CorruptRecord: ")  # as much was read as was placed
        else:
            assert told.startswith("StorageError: ")
            assert kind in told
        if place in (_as_fifo, _as_sparse):
            assert path.name in limited(partial(examine, root))


def test_what_a_link_leads_to_is_not_copied(root: Path, tmp_path: Path, secret: Path) -> None:
    """Neither by a standby nor by an export: outside it would be readable to others."""
    path = only(root, "topics/orders/data/**/*.log")
    secret.write_bytes(path.read_bytes())  # not to be told from the segment
    path.unlink()
    path.symlink_to(secret)
    store = txnlog.open(root)
    copy, export = tmp_path / "copy", tmp_path / "export"
    with pytest.raises(StorageError, match="is a symbolic link"):
        Follower(store, copy).follow()
    with pytest.raises(StorageError, match="is a symbolic link"):
        store.kafka.export_topic("orders", str(export))
    content = secret.read_bytes()
    files = [file for folder in (copy, export) for file in folder.rglob("*") if file.is_file()]
    assert [file for file in files if file.read_bytes() == content] == []


def test_a_topic_behind_a_link_is_not_missed(root: Path, tmp_path: Path) -> None:
    """Who moves its folder to another disk is told: by whatever reads all topics."""
    txnlog.open(root).topics.create("paid")
    (root / "topics" / "paid").rename(tmp_path / "paid")
    (root / "topics" / "paid").symlink_to(tmp_path / "paid")
    store = txnlog.open(root)
    failed = [s for s in store.maintain() if isinstance(s, MaintenanceFailure)]
    assert {(step.topic, "is a symbolic link" in str(step.error)) for step in failed} == {
        ("paid", True)
    }
    found = {(f.subject, f.state): f.detail for f in store.examine(with_probe=False)}
    assert "is a symbolic link" in found["paid", "unreadable"]
    assert ("orders", "ok") in found
    for call in (store.topics.list, lambda: store.consumer(pattern=".*", group_id="g")):
        with pytest.raises(StorageError, match="paid is a symbolic link"):
            call()
    assert store.scan("orders").record_count == 1


def test_an_import_leaves_no_link_out(root: Path, tmp_path: Path) -> None:
    """A segment, or a partition, that no listing shows would be missing without a word."""
    store, export = txnlog.open(root), tmp_path / "export"
    store.kafka.export_topic("orders", str(export))
    copy = export / "orders-0"
    segment = only(copy, "*.log")
    segment.symlink_to(segment.rename(tmp_path / "segment"))
    with pytest.raises(InvalidOption, match=rf"{segment.name} is a link"):
        store.kafka.import_topic("again", [str(copy)])
    segment.unlink()
    (tmp_path / "segment").rename(segment)
    (export / "orders-1").symlink_to(copy)
    with pytest.raises(InvalidOption, match="orders-1 is a link"):
        store.kafka.import_topic("again", [str(export)])
    (export / "orders-1").unlink()
    store.kafka.import_topic("again", [str(export)])
    assert store.snapshot(["again"]).scan("again").to_arrow().num_rows == 1


@pytest.mark.parametrize("folder", [".tmp", "topics/orders/data", "topics/orders/log"])
def test_a_link_has_nothing_written_elsewhere(root: Path, folder: str, tmp_path: Path) -> None:
    """Whichever folder it stands for, that of unfinished files too."""
    outside = tmp_path / "outside"
    path = root / folder
    if path.exists():
        path.rename(outside)
    else:
        outside.mkdir()
    path.symlink_to(outside)
    before = sorted(outside.rglob("*"))
    with (
        pytest.raises(TxnlogError, match="symbolic link"),
        txnlog.open(root).producer(delivery_timeout_ms=1000) as producer,
    ):
        producer.send("orders", b"2")
    assert sorted(outside.rglob("*")) == before


def test_a_link_in_place_of_the_name_decides_nothing(
    tmp_path: Path, secret: Path, way: str
) -> None:
    """It is somebody's answer to who was first; what it leads to is neither read nor written."""
    root = tmp_path / "store"
    storage = LocalStorage(str(root))
    storage.put("a/b", b"x")
    (root / "a" / "link").symlink_to(secret)
    (root / "a" / "loose").symlink_to(tmp_path / "nothing")
    for name in ("a/link", "a/loose"):
        assert not storage.put_if_absent(name, b"y")
        for read in (
            storage.get,
            storage.size,
            storage.modified_ms,
            storage.confirm,
            storage.open_file,
            lambda name: storage.get_range(name, 0, 10),
        ):
            with pytest.raises(StorageError, match=f"{name}.* is a symbolic link"):
                read(name)
    assert storage.list_names("a") == ["b"]
    storage.delete(["a/link", "a/loose"])  # itself
    assert secret.read_bytes() == SECRET
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("step", range(4))  # the root, a, b, the file
def test_a_folder_that_is_exchanged_meanwhile_leads_nowhere(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a step on the way to a file, the folders become links to another tree."""
    root, other = tmp_path / "store", tmp_path / "other"
    storage = LocalStorage(str(root))
    storage.put("a/b/file", b"own")
    shutil.copytree(root, other)
    (other / "a" / "b" / "file").write_bytes(SECRET)
    real = os.open
    opened: list[str] = []

    def exchange(name: str, flags: int, mode: int, *, dir_fd: int | None) -> int:
        if len(opened) == step:
            root.rename(tmp_path / "away")
            root.symlink_to(other)
        opened.append(name)
        return real(name, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", exchange)
    if step == 0:
        with pytest.raises(StorageError, match="is a symbolic link"):
            storage.get("a/b/file")
    else:
        assert storage.get("a/b/file") == b"own"
        assert opened == [str(root), "a", "b", "file"]


def test_arrow_opens_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Arrow reads by itself is opened as everything else is, though the bytes are right."""
    monkeypatch.setattr("txnlog.segments.writer.DEFAULT_ROW_GROUP_BYTES", 600)
    monkeypatch.setattr("txnlog.read.arrow_scans.WHOLE_BYTES", 0)
    store = typed_store(storage=LocalStorage(str(tmp_path / "store")))
    snapshot = store.snapshot(["typed"])
    scan = store.scan("typed", columns=["number"], filter=pc.field("id") > 25)
    assert snapshot.dataset("typed").count_rows() > scan.to_arrow().num_rows > 0
    outside = tmp_path / "outside"
    outside.mkdir()
    for number, path in enumerate((tmp_path / "store").rglob("*.parquet")):
        path.symlink_to(path.rename(outside / f"{number}"))
    for read in (snapshot.dataset("typed").to_table, scan.to_arrow):
        with pytest.raises(StorageError, match="is a symbolic link"):
            read()


def test_a_named_file_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    """A user may name a link; nobody waits for a FIFO, or reads what has no end."""
    fifo, sparse, link = tmp_path / "fifo", tmp_path / "sparse", tmp_path / "link"
    _as_fifo(fifo)
    _as_sparse(sparse)
    link.symlink_to("/dev/zero")

    def dump(path: str) -> None:
        with open_segment_file(path):
            pass

    assert "is a FIFO" in limited(lambda: dump(str(fifo)))
    assert "is a FIFO" in limited(lambda: read_file(str(fifo)))
    assert "is a device" in limited(lambda: dump(str(link)))
    assert "is a device" in limited(lambda: read_file(str(link)))
    assert "has 214,748,364,800 bytes" in limited(lambda: read_file(str(sparse)))
    named = tmp_path / "named"
    named.symlink_to(tmp_path / "index")
    (tmp_path / "index").write_bytes(b"x")
    assert read_file(str(named)) == b"x"
