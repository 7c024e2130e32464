"""What is particular to hdfs-native: the texts of its errors, what it must not be asked, forks.

Its place is taken by a stand-in with files in memory. The exceptions are those that hdfs-native
0.14.7 raised on Hadoop 3.4.2; `make test-stores` runs the adapter on a real cluster.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import hdfs_native
import pytest

from txnlog.errors import InvalidOption, ObjectNotFound, StorageError, UnsupportedFilesystem
from txnlog.storage import open_storage
from txnlog.storage.adapters.hdfs_native import NativeHdfsClient, NativeHdfsStorage
from txnlog.storage.create_once import create_once
from txnlog.testing import VirtualClock

_STACK = (
    "\n\tat org.apache.hadoop.hdfs.server.namenode.FSDirRenameOp.renameTo(FSDirRenameOp.java:1)"
)


def rpc_error(java_class: str, text: str) -> RuntimeError:
    escaped = (text + _STACK).replace("\n", "\\n").replace("\t", "\\t").replace('"', '\\"')
    return RuntimeError(f'RPCError("{java_class}", "{escaped}")')


@dataclass
class StandIn:
    """As much of ``hdfs_native.Client`` as the adapter uses."""

    files: dict[str, bytes] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    times: list[tuple[str, int, int]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    """The next renames raise these, when they have been made."""
    breaks: list[BaseException] = field(default_factory=list)
    """The next readers raise these."""
    given: tuple[Any, ...] = ()

    @property
    def inner(self) -> StandIn:
        return self

    def create(self, path: str, options: hdfs_native.WriteOptions) -> Any:
        assert not options.overwrite
        assert options.create_parent
        self.mkdirs(path.rpartition("/")[0], create_parent=True)
        parts: list[bytes] = []

        def close() -> None:
            self.files[path] = b"".join(parts)

        return SimpleNamespace(write=parts.append, close=close)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        assert not overwrite
        if source not in self.files:
            raise FileNotFoundError(f"rename source {source} is not found.{_STACK}")
        if target in self.files:
            raise FileExistsError(f"rename destination {target} already exists{_STACK}")
        if target.rpartition("/")[0] not in self.folders:
            raise FileNotFoundError(f"rename destination parent {target} not found.{_STACK}")
        self.files[target] = self.files.pop(source)
        if self.errors:
            raise self.errors.pop(0)

    def mkdirs(self, path: str, create_parent: bool) -> None:
        assert create_parent
        while path:
            self.folders.add(path)
            path = path.rpartition("/")[0]

    def delete(self, path: str, recursive: bool) -> bool:
        assert not recursive
        if any(p.startswith(f"{path}/") for p in (*self.files, *self.folders)):
            text = f"`{path} is non empty': Directory is not empty"
            raise rpc_error("org.apache.hadoop.fs.PathIsNotEmptyDirectoryException", text)
        self.folders.discard(path)
        return self.files.pop(path, None) is not None

    def get_file_info(self, path: str) -> Any:
        if path not in self.files and path not in self.folders:
            raise FileNotFoundError(path)
        data = self.files.get(path, b"")
        return SimpleNamespace(
            path=path, isdir=path in self.folders, length=len(data), modification_time=1234
        )

    def list_status(self, path: str) -> Iterator[Any]:
        names = sorted(p for p in (*self.files, *self.folders) if p.rpartition("/")[0] == path)
        if path not in self.folders:
            raise FileNotFoundError(path)
        return iter([self.get_file_info(name) for name in names])

    def read(self, path: str) -> Any:
        if path not in self.files:
            raise FileNotFoundError(f"File does not exist: {path}{_STACK}")
        return Reader(self.files[path], self.breaks)

    def set_times(self, path: str, modified_ms: int, accessed_ms: int) -> None:
        self.times.append((path, modified_ms, accessed_ms))


@dataclass
class Reader:
    """A reader of one file. The real one panics in Rust when reading past the end."""

    data: bytes
    breaks: list[BaseException]

    def __len__(self) -> int:
        return len(self.data)

    def read_range(self, offset: int, length: int) -> bytes:
        if self.breaks:
            raise self.breaks.pop(0)
        assert 0 <= length <= len(self.data) - offset
        return self.data[offset : offset + length]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()

    def connect(*arguments: Any, **named: Any) -> StandIn:
        made.given = (*arguments, named)
        return made

    monkeypatch.setattr(hdfs_native, "Client", connect)
    return made


def open_on_stand_in(**options: Any) -> NativeHdfsStorage:
    storage = open_storage("hdfs://nn:8020/store", options)
    assert isinstance(storage, NativeHdfsStorage)
    storage.trust()
    return storage


@pytest.fixture
def storage(cluster: StandIn) -> NativeHdfsStorage:
    return open_on_stand_in()


def test_objects_are_created_once_and_read(cluster: StandIn, storage: NativeHdfsStorage) -> None:
    """The whole interface, once; nothing is left behind."""
    assert storage.put_if_absent("a/b/1", b"first")
    assert not storage.put_if_absent("a/b/1", b"second")
    with storage.upload("a/b/2") as upload:
        upload.write(b"x" * (9 << 20))
    storage.put("a/empty", b"")
    assert storage.get("a/b/1") == b"first"
    assert storage.size("a/b/2") == 9 << 20
    assert storage.get("a/empty") == b""
    assert storage.list_names("a/b", "1") == ["2"]
    assert storage.list_names("a/b/1") == storage.list_names("none") == []
    assert storage.list_folders("") == ["a"]
    assert dict(storage.list_all("a")) == {"a/b/1": 5, "a/b/2": 9 << 20, "a/empty": 0}
    assert storage.modified_ms("a/b/1") == 1234
    for read in (storage.get, storage.size, storage.modified_ms):
        with pytest.raises(ObjectNotFound, match="a/none"):
            read("a/none")
    with pytest.raises(ObjectNotFound):
        storage.size("a")
    storage.delete(["a/b/1", "a/b/2", "a/none"])
    assert storage.list_folders("a") == []
    assert list(cluster.files) == ["/store/a/empty"]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 10, b"0123456789"), (8, 99, b"89"), (10, 12, b""), (11, 12, b""), (4, 4, b"")],
)
def test_no_more_is_read_than_there_is(
    storage: NativeHdfsStorage, start: int, stop: int, expected: bytes
) -> None:
    """Past the end hdfs-native panics, which no handler of exceptions sees."""
    storage.put("a", b"0123456789")
    assert storage.get_range("a", start, stop) == expected


def test_a_file_that_was_found_is_confirmed_by_an_edit(
    cluster: StandIn, storage: NativeHdfsStorage
) -> None:
    """The same time again, and that of the last access not at all, which may be switched off."""
    storage.put("a", b"x")
    storage.confirm("a")
    assert cluster.times == [("/store/a", 1234, 2**64 - 1)]
    with pytest.raises(ObjectNotFound):
        storage.confirm("b")


def test_a_rename_whose_answer_was_lost_is_found_out(
    cluster: StandIn, storage: NativeHdfsStorage
) -> None:
    """Hazard 1: hdfs-native reports the broken connection, and the object is read back."""
    cluster.errors = [OSError("connection reset by peer")]
    with pytest.raises(StorageError, match="connection reset") as caught:
        storage.put_if_absent("a", b"mine")
    assert caught.value.retriable
    cluster.errors = [OSError("connection reset by peer")]
    assert create_once(storage, "b", b"mine", VirtualClock())
    assert not create_once(storage, "b", b"other", VirtualClock())
    assert sorted(cluster.files) == ["/store/a", "/store/b"]


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (RuntimeError('DataTransferError("All DataNodes failed: []")'), 3),
        (rpc_error("org.apache.hadoop.ipc.StandbyException", "not DataTransferError("), 1),
    ],
    ids=["datanodes", "namenode"],
)
def test_a_read_is_repeated_when_the_datanodes_have_failed(
    cluster: StandIn, storage: NativeHdfsStorage, error: RuntimeError, attempts: int
) -> None:
    """When a connection breaks: hdfs-native asks each once. The NameNode's word is final."""
    storage.put("a", b"0123456789")
    cluster.breaks += [error] * (attempts - 1)
    assert storage.get_range("a", 2, 4) == b"23"
    cluster.breaks += [error] * attempts
    with pytest.raises(StorageError) as caught:
        storage.get("a")
    assert caught.value.retriable
    assert cluster.breaks == []


@pytest.mark.parametrize(
    ("error", "said", "retriable"),
    [
        (
            rpc_error(
                "org.apache.hadoop.security.AccessControlException",
                'Permission denied: user=nobody, access=WRITE, inode="/t":root',
            ),
            r"Permission denied: user=nobody.*check user, token",
            False,
        ),
        (
            rpc_error("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Name node is"),
            "wait until it has left it",
            True,
        ),
        (RuntimeError('DataTransferError("no acknowledgement")'), "no acknowledgement", True),
        (
            FileNotFoundError(f"rename source /store/.tmp/1 is not found.{_STACK}"),
            "rename source /store/.tmp/1 is not found.; it was deleted meanwhile",
            True,
        ),
    ],
)
def test_errors_say_what_to_do(
    cluster: StandIn, storage: NativeHdfsStorage, error: Exception, said: str, retriable: bool
) -> None:
    """What the NameNode said, without Java's stack, and whether it may go better later."""
    cluster.errors = [error]
    with pytest.raises(StorageError, match=said) as caught:
        storage.put_if_absent("a", b"x")
    assert not isinstance(caught.value, ObjectNotFound)
    assert caught.value.retriable == retriable
    assert "hadoop.hdfs.server.namenode.FSDir" not in str(caught.value)


def test_settings_reach_the_client(cluster: StandIn) -> None:
    """Hadoop's own, from options, whose values may be JSON; ours where none is given."""
    storage = open_on_stand_in(
        config='{"dfs.client.failover.max.attempts": 9}', kerberos_keytab="/a/keytab"
    )
    storage.list_names("")
    address, settings, config_folder, named = cluster.given
    assert address == "hdfs://nn:8020"
    assert settings == {"dfs.client.failover.max.attempts": "9"}
    assert (config_folder, named) == (None, {"kerberos_keytab": "/a/keytab"})
    open_on_stand_in().list_names("")
    assert cluster.given[1] == {"dfs.client.failover.max.attempts": "3"}


def test_unknown_options_are_refused() -> None:
    """With what there is; the user is nothing that hdfs-native takes."""
    with pytest.raises(InvalidOption, match=r"no storage option user; .*HADOOP_USER_NAME"):
        open_storage("hdfs://nn/store", {"user": "me"})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is in the message."""
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(UnsupportedFilesystem, match=r"pip install 'hdfs-native>=\S+' "):
        NativeHdfsStorage("hdfs://nn/store").get("a")


@contextmanager
def silent_server() -> Iterator[tuple[int, list[socket.socket]]]:
    """Takes connections and requests, and never answers; its port, and what it has taken."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1], taken
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in taken:
        connection.close()


def test_a_namenode_that_never_answers_is_not_waited_for_without_end() -> None:
    """The real hdfs-native, which has no limit itself; each call has a connection of its own."""
    with silent_server() as (port, taken):
        storage = open_storage(f"hdfs://127.0.0.1:{port}/store", {"timeout_s": "30"})
        assert isinstance(storage, NativeHdfsStorage)
        storage.trust()
        client = storage.client
        assert isinstance(client, NativeHdfsClient)
        assert client._timeout_s == 30
        client._timeout_s = 0.1
        calls: list[Callable[[], object]] = [
            lambda: storage.get("a"),
            lambda: storage.list_names(""),
        ]
        for number, call in enumerate(calls, start=1):
            with pytest.raises(StorageError, match=r"no answer for 0.1 s; .*check it") as caught:
                call()
            assert not isinstance(caught.value, ObjectNotFound)
            assert caught.value.retriable
            assert len(taken) == number


_FORKS = """
import os, sys
from txnlog.storage import open_storage
storage = open_storage("hdfs://127.0.0.1:9/store")
inherited = storage.client
child = os.fork()
if child == 0:
    sys.exit(storage.client is inherited)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_of_a_fork_ends() -> None:
    """The real hdfs-native: its threads are missing in the child, which must not wait for them."""
    arguments = [sys.executable, "-W", "ignore", "-c", _FORKS]
    subprocess.run(arguments, check=True, timeout=30)
