"""SFTP over SSH in the test process: the exclusive rename, syncs, lost connections, forks."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import asyncssh
import fsspec.asyn
import pytest

from tests.support.storage.sftp_server import PASSWORD, SftpServer, run_sftp_server
from txnlog.clock import SystemClock
from txnlog.errors import (
    InvalidTopic,
    InvalidTransactionalId,
    ObjectNotFound,
    PutIfAbsentBroken,
    StorageError,
    UnsupportedFilesystem,
)
from txnlog.storage import open_storage
from txnlog.storage.adapters.sftp import SftpStorage
from txnlog.storage.base import Storage
from txnlog.storage.create_once import create_once
from txnlog.storage.probe import probe
from txnlog.store import attach
from txnlog.testing.conformance.interface import CHECKS, Check, long_listings_are_complete

T = TypeVar("T")
_COUNTER = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    with run_sftp_server(tmp_path_factory.mktemp("sftp")) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the store's files are."""
    return tmp_path / "store"


@pytest.fixture
def storage(server: SftpServer, folder: Path) -> Storage:
    """An empty storage."""
    found = open_storage(f"sftp://127.0.0.1:{server.port}{folder}", server.options())
    found.trust()
    server.calls.clear()
    return found


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[pytest.mark.more] if check is long_listings_are_complete else [])
        for check in CHECKS
    ],
    ids=lambda check: check.__name__,
)
def test_it_conforms(storage: Storage, check: Check) -> None:
    """The suite that every adapter passes; OpenSSH is for `make test-stores`."""
    check(storage)


def test_an_object_and_its_name_are_synced(storage: Storage, server: SftpServer) -> None:
    """The bytes before it shows, and the name before it is told."""
    assert storage.put_if_absent("a/b", b"x")
    assert server.calls[0] == "fsync"
    assert server.calls[-2:] == ["rename", "fsync"]
    server.calls.clear()
    assert storage.without_fsync().put_if_absent("a/r", b"x")
    assert "fsync" not in server.calls
    server.calls.clear()
    storage.confirm("a/b")
    assert server.calls == ["fsync"]
    with pytest.raises(ObjectNotFound):
        storage.confirm("a/c")


def test_who_may_only_read_confirms(storage: Storage, server: SftpServer) -> None:
    """By a handle for reading; what is not there is missing all the same."""
    storage.put("a", b"x")
    server.calls.clear()
    server.read_only = True
    try:
        storage.confirm("a")
        assert server.calls == ["fsync"]
        with pytest.raises(ObjectNotFound):
            storage.confirm("b")
        with pytest.raises(StorageError, match="permission is denied"):
            storage.put("c", b"x")
    finally:
        server.read_only = False


def test_a_refused_create_leaves_no_temporary_file(storage: Storage, folder: Path) -> None:
    """Nor does one that won."""
    assert storage.put_if_absent("a", b"x")
    assert not storage.put_if_absent("a", b"y")
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["a"]


def test_a_unique_name_that_is_taken_is_an_error(storage: Storage) -> None:
    """Nothing is overwritten."""
    storage.put("a", b"x")
    with pytest.raises(StorageError, match="should be unique") as caught:
        storage.put("a", b"y")
    assert not caught.value.retriable
    assert storage.get("a") == b"x"


def test_a_lost_connection_is_made_again(storage: Storage, server: SftpServer) -> None:
    """Read-only requests are repeated."""
    storage.put("a", b"x")
    server.cut()
    assert storage.get("a") == b"x"
    assert storage.put_if_absent("b", b"x")


def test_a_server_that_hangs_is_given_up(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its SSH goes on to answer; what serves files does not. Later a new connection is made."""
    storage.put("a", b"x")
    handler, module = asyncssh.sftp.SFTPServerHandler, "txnlog.storage.adapters.sftp_client"

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as hanging:
        hanging.setattr(handler, "_process_packet", never)
        hanging.setattr(f"{module}._ANSWER_S", 0.1)
        for call in (lambda: storage.get("a"), lambda: storage.put("b", b"x")):
            with pytest.raises(StorageError, match=r"has not answered|FSTimeoutError") as caught:
                call()
            assert caught.value.retriable
    assert storage.get("a") == b"x"


def test_a_connection_that_hangs_at_first_is_closed(
    server: SftpServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold a place at the server, of which each account may have a few."""
    made: list[asyncssh.SSHClientConnection] = []
    real = asyncssh.connect

    async def connect(*place: Any, **options: Any) -> asyncssh.SSHClientConnection:
        made.append(await real(*place, **options))
        return made[-1]

    async def late(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("asyncssh.connect", connect)
    monkeypatch.setattr(asyncssh.SSHClientConnection, "start_sftp_client", late)
    options = {**server.options(), "known_hosts": "NONE"}  # a client of its own
    with pytest.raises(StorageError, match="connecting"):
        open_storage(f"sftp://127.0.0.1:{server.port}{folder}", options).get("a")
    assert [one.is_closed() for one in made] == [True]
    server.connections.pop()  # other tests cut the last one


def test_a_sync_may_take_long(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the server's disk takes for what was written, here or by others."""
    module = "txnlog.storage.adapters.sftp_client"
    limits: list[float] = []

    def sync(loop: Any, request: Any, *args: Any, timeout: float) -> object:
        limits.append(timeout)
        return fsspec.asyn.sync(loop, request, *args, timeout=timeout)

    storage.put("a", b"x")
    monkeypatch.setattr(f"{module}.sync", sync)
    monkeypatch.setattr(f"{module}._SLOWEST_BYTES_S", 1)
    storage.put("b", bytes(1000))
    assert limits.count(120 + 1000) >= 3, "the write, and a sync before and after the rename"
    limits.clear()
    storage.confirm("a")
    assert limits == [1200]


def test_a_file_read_whole_comes_in_pieces(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that each has an answer in time, however long the file is."""
    monkeypatch.setattr("txnlog.storage.adapters.sftp_client._PIECE_BYTES", 4)
    sizes: list[int] = []
    real = asyncssh.SFTPClientFile.read

    async def read(file: Any, size: int, offset: int) -> Any:
        sizes.append(size)
        return await real(file, size, offset)

    monkeypatch.setattr("asyncssh.SFTPClientFile.read", read)
    for size in (0, 3, 4, 5, 9):
        storage.put(f"f{size}", b"123456789"[:size])
        assert storage.get(f"f{size}") == b"123456789"[:size]
    assert max(sizes) == 4


def test_a_file_is_one_file_while_it_is_read(
    storage: Storage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is deleted between two pieces."""
    storage.put("a", b"12345678")
    monkeypatch.setattr("txnlog.storage.adapters.sftp_client._PIECE_BYTES", 4)
    real = asyncssh.SFTPClientFile.read

    async def read(file: Any, size: int, offset: int) -> Any:
        data = await real(file, size, offset)
        if offset == 0:
            (folder / "a").unlink()
        return data

    monkeypatch.setattr("asyncssh.SFTPClientFile.read", read)
    assert storage.get("a") == b"12345678"


def test_a_rename_whose_answer_was_lost_is_found_out(storage: Storage, server: SftpServer) -> None:
    """Hazard 1: nothing is repeated beneath; the object is read back, and is ours."""
    server.lose_renames = 2
    with pytest.raises(StorageError, match=r"creating .*/a failed") as caught:
        storage.put_if_absent("a", b"x")
    assert caught.value.retriable
    assert storage.get("a") == b"x"
    assert create_once(storage, "b", b"nonce 1", SystemClock())
    assert not create_once(storage, "b", b"nonce 2", SystemClock())
    assert server.lose_renames == 0


def test_the_probe_refuses_a_rename_that_overwrites(tmp_path: Path) -> None:
    """Asyncssh's own server, as many others."""
    with run_sftp_server(tmp_path, honest=False) as server:
        url = f"sftp://127.0.0.1:{server.port}{tmp_path}/store"
        with pytest.raises(PutIfAbsentBroken, match="the same name was created twice"):
            probe(open_storage(url, server.options()))


@pytest.mark.few(1)
@pytest.mark.parametrize("folds", [False, True])
def test_whether_the_servers_disk_folds_case_is_found_out(
    tmp_path: Path, folds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the store's file, which is asked for once under two names."""
    with run_sftp_server(tmp_path, folds=tmp_path / "s" if folds else None) as server:
        storage = open_storage(f"sftp://127.0.0.1:{server.port}{tmp_path}/s", server.options())
        assert not storage.folds_case()  # as far as is known without a store
        store = attach(storage, create=True)
        store.topics.create("Orders")
        with monkeypatch.context() as patch:
            patch.setattr(SftpStorage, "size", None)
            assert storage.folds_case() == folds
        if folds:
            with pytest.raises(InvalidTopic, match="topics/Orders is there"):
                store.topics.create("orders")
        else:
            store.topics.create("orders")
        with store.producer(transactional_id="Job") as producer:
            producer.init_transactions()
        other = store.producer(transactional_id="job")
        if folds:
            with pytest.raises(InvalidTransactionalId, match="transactions/Job is there"):
                other.init_transactions()
        else:
            other.init_transactions()


def test_servers_of_one_host_are_told_apart(tmp_path: Path) -> None:
    """The check of one says nothing of another one, wherever the port is named."""
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    with (
        run_sftp_server(tmp_path / "good") as good,
        run_sftp_server(tmp_path / "bad", honest=False) as bad,
    ):

        def write(server: SftpServer, *, in_url: bool) -> bool:
            host = f"127.0.0.1:{server.port}" if in_url else "127.0.0.1"
            options = server.options() | ({} if in_url else {"port": server.port})
            name = f"in-url-{in_url}"
            return open_storage(f"sftp://{host}{tmp_path}/store", options).put_if_absent(name, b"x")

        for in_url in (False, True):
            assert write(good, in_url=in_url)
        for in_url in (False, True):
            with pytest.raises(PutIfAbsentBroken, match="the same name was created twice"):
                write(bad, in_url=in_url)


def test_a_server_that_is_silent_keeps_nobody_from_another_one(
    storage: Storage, server: SftpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for it waits alone, for as long as a connection may take."""
    asked, over = threading.Event(), threading.Event()
    real = asyncssh.connect

    async def connect(host: str, port: int, **options: Any) -> asyncssh.SSHClientConnection:
        if port != server.port:
            assert options["connect_timeout"] == options["login_timeout"]
            asked.set()
            await asyncio.to_thread(over.wait)
            raise TimeoutError
        return await real(host, port, **options)

    monkeypatch.setattr("asyncssh.connect", connect)
    silent = open_storage("sftp://127.0.0.1:9/silent", server.options())
    with ThreadPoolExecutor(1) as others:
        waiting = others.submit(silent.list_names, "")
        assert asked.wait(30)
        try:
            options = {**server.options(), "known_hosts": "none"}  # another client, not made yet
            url = storage.address().url
            assert others_done(lambda: open_storage(url, options).list_names("")) == []
            assert not waiting.done()
        finally:
            over.set()
        with pytest.raises(StorageError, match="connecting to sftp://127"):
            waiting.result()


def others_done(call: Callable[[], T]) -> T:
    """What a call in another thread returns; it must not take for ever."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).result(timeout=30)
    finally:
        pool.shutdown(wait=False)


def test_an_unknown_server_is_refused(server: SftpServer, tmp_path: Path) -> None:
    """A man in the middle could answer anything; the message says how to add the host key."""
    (tmp_path / "nobody").write_text("")
    options = {**server.options(), "known_hosts": str(tmp_path / "nobody")}
    with pytest.raises(StorageError, match="ssh-keyscan") as caught:
        open_storage(f"sftp://127.0.0.1:{server.port}{tmp_path}", options).get("a")
    assert not caught.value.retriable


def test_a_wrong_password_is_not_shown(server: SftpServer, tmp_path: Path) -> None:
    """Nor the right one."""
    options = {**server.options(), "password": "not the password"}
    storage = open_storage(f"sftp://127.0.0.1:{server.port}{tmp_path}", options)
    with pytest.raises(StorageError, match="check username, password") as caught:
        storage.get("a")
    text = f"{caught.value} {storage!r} {storage.address()!r}"
    assert "not the password" not in text
    assert PASSWORD not in text


def test_a_file_that_is_no_key_is_not_tried_again(server: SftpServer, tmp_path: Path) -> None:
    """The message says which options to look at."""
    (tmp_path / "key").write_text("no key")
    options = server.options() | {"client_keys": str(tmp_path / "key")}
    with pytest.raises(StorageError, match="client_keys and passphrase") as caught:
        open_storage(f"sftp://127.0.0.1:{server.port}{tmp_path}/s", options).get("a")
    assert not caught.value.retriable


def test_nothing_listens() -> None:
    """An error that says so."""
    with pytest.raises(
        StorageError, match=r"connecting to sftp://127\.0\.0\.1:9/a failed"
    ) as caught:
        open_storage("sftp://127.0.0.1:9/a").get("x")
    assert caught.value.retriable


_FORKS = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from txnlog.storage import open_storage
storage = open_storage(sys.argv[1], json.loads(sys.argv[2]))
storage.trust()
storage.put("before", b"x")
child = os.fork()
if child == 0:
    fine = storage.get("before") == b"x" and storage.put_if_absent("child", b"y")
    sys.exit(0 if fine else 1)  # with all that is done at exit
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert storage.list_names("") == ["before", "child"]
"""


def test_a_connection_survives_a_fork(storage: Storage) -> None:
    """A child makes a connection of its own; the parent's lives on."""
    address = storage.address()
    arguments = [sys.executable, "-c", _FORKS, address.url, json.dumps(dict(address.options))]
    done = subprocess.run(arguments, check=True, timeout=30, capture_output=True)
    assert done.stderr == b""


def test_a_missing_asyncssh_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is in the message."""
    monkeypatch.delitem(sys.modules, "txnlog.storage.adapters.sftp_client", raising=False)
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    with pytest.raises(UnsupportedFilesystem, match=r"pip install 'asyncssh>=\S+'$"):
        open_storage("sftp://host/a").get("a")
