"""Storage on HDFS through its own protocols, ``hdfs://``, with hdfs-native: no Java, no libhdfs.

Data goes straight to the DataNodes, and comes from the nearest. Knows hdfs-native and its options,
and nothing of what objects mean.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from weakref import WeakSet

from txnlog.errors import InvalidOption
from txnlog.storage.adapters.hdfs import (
    HdfsClient,
    HdfsStatus,
    HdfsStorage,
    check_url,
    remote_failure,
)
from txnlog.storage.base import Storage
from txnlog.storage.fork_safe_lock import ForkSafeLock
from txnlog.storage.option_types import parse_options
from txnlog.storage.whole import check_whole
from txnlog.time_limits import NoAnswer, run_within

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

P = ParamSpec("P")
T = TypeVar("T")

_OPTIONS = frozenset(
    {
        "config",
        "config_dir",
        "replication",
        "kerberos_principal",
        "kerberos_keytab",
        "kerberos_cache",
        "timeout_s",
    }
)
_TIMEOUT_S = 120
"""Longer than what hdfs-native allows a DataNode, ``dfs.client.socket-timeout``, before it goes on
with another one."""
_SETTINGS = {"dfs.client.failover.max.attempts": "3"}
"""With hdfs-native's own 15 a call would wait minutes for a NameNode that is down: our callers
retry by themselves, and know for how long.
"""
_READ_ATTEMPTS = 3
_CHUNK_BYTES = 4 << 20
_RPC_ERROR = re.compile(r'\w*RPCError\("([^"]*)", "(.*)"\)', re.DOTALL)
"""How hdfs-native shows an exception of the NameNode's: its class, its message and stack."""
_LISTED_AT_ONCE = 1000
"""What the NameNode tells in one answer, at most."""
_LEAVES_TIME = 2**64 - 1
"""The protocol's form of -1: do not change the time of the last access."""


def open_url(url: str, options: Mapping[str, object]) -> Storage:
    """The storage at ``hdfs://host:8020/folder``, or ``hdfs://nameservice/folder``.

    Options:

    * ``config``: Hadoop's settings, as a JSON object; ``config_dir``: a folder with
      ``core-site.xml`` and ``hdfs-site.xml``. Without, ``HADOOP_CONF_DIR`` is looked at. They say
      where the NameNodes of a nameservice are;
    * ``replication``: of new files; without it the cluster's ``dfs.replication``;
    * ``kerberos_principal``, ``kerberos_keytab``, ``kerberos_cache``: without, ``kinit``'s ticket;
    * ``timeout_s``: how long a NameNode or DataNode may leave a request unanswered, 120.
    """
    check_url(url)
    parsed = parse_options(options, nested=("config",), integers=("replication", "timeout_s"))
    unknown = sorted(parsed.keys() - _OPTIONS)
    if unknown:
        raise InvalidOption(
            f"hdfs:// has no storage option {', '.join(unknown)}; it takes "
            f"{', '.join(sorted(_OPTIONS))}. Who you are, without Kerberos, stands in the "
            "environment: HADOOP_USER_NAME"
        )
    return NativeHdfsStorage(url, parsed)


class NativeHdfsStorage(HdfsStorage):
    """Objects below ``hdfs://host:port/folder``."""

    needs = "hdfs-native", "hdfs"

    def lists_whole_folders(self) -> bool:
        # hdfs-native cannot begin a listing behind a name.
        return True

    def _load_client(self) -> Callable[[], HdfsClient]:
        from hdfs_native import Client

        options = self._options
        settings = {k: str(v) for k, v in (options.get("config") or {}).items()}
        named = {k: v for k, v in options.items() if k.startswith("kerberos_")}
        address = f"hdfs://{self._host}"

        def connect() -> Client:
            return Client(address, _SETTINGS | settings, options.get("config_dir"), **named)

        return partial(
            NativeHdfsClient,
            connect,
            options.get("replication"),
            options.get("timeout_s", _TIMEOUT_S),
        )


class NativeHdfsClient(HdfsClient):
    """One client of hdfs-native, used by all threads of a process.

    It waits for a NameNode without any limit, so its calls are given one. Where a call has passed
    it, the connection is given up too: those that come later would wait behind it.
    """

    def __init__(
        self, connect: Callable[[], Client], replication: int | None, timeout_s: float
    ) -> None:
        self._connect = connect
        self._client = connect()
        self._replication = replication
        self._timeout_s = timeout_s
        _clients.add(self)

    def _call(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Make a call of the client's. Raises NoAnswer: it may still take effect."""
        client = self._client
        try:
            with _translated():
                return run_within(partial(call, *arguments, **named), self._timeout_s)
        except NoAnswer:
            self._give_up(client)
            raise

    def _give_up(self, client: Client) -> None:
        """Connect again, unless another thread has."""
        with _RECONNECT_LOCK.mutex:
            if self._client is client:
                self.leak()  # a call still waits in it
                self._client = self._connect()

    def leak(self) -> None:
        """Never let go of the client: in a child of a fork its threads are missing.

        Dropping it waits for them for ever, at the latest when the interpreter ends.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._client.inner))

    def create(self, path: str, data: bytes | Path) -> None:
        from hdfs_native import WriteOptions

        options = WriteOptions(replication=self._replication, overwrite=False, create_parent=True)
        # Not its FileWriter, which closes the file, as if it were whole, when it is let go of.
        writer = self._call(self._client.inner.create, path, options)
        for chunk in [data] if isinstance(data, bytes) else _read_chunks(data):
            self._call(writer.write, chunk)
        # Has every DataNode sync the last block too, as it does with each that is full.
        self._call(writer.close)

    def rename(self, source: str, target: str) -> None:
        self._call(self._client.rename, source, target, overwrite=False)

    def make_folders(self, path: str) -> None:
        self._call(self._client.mkdirs, path, create_parent=True)

    def delete(self, path: str) -> None:
        self._call(self._client.delete, path, recursive=False)

    def read(self, path: str, start: int, stop: int | None) -> bytes:
        def read(client: Client) -> bytes:
            reader = client.read(path)
            if stop is None:
                check_whole(len(reader))
            end = len(reader) if stop is None else min(stop, len(reader))
            return reader.read_range(start, end - start) if start < end else b""

        for attempt in range(1, _READ_ATTEMPTS + 1):
            try:
                return self._call(read, self._client)
            except RuntimeError as error:
                # Each DataNode is asked once: where there is one replica, a connection that
                # breaks is a read that fails. One that a client leaves behind which ends does:
                # others find it among hdfs-native's connections.
                if attempt == _READ_ATTEMPTS or not str(error).startswith("DataTransferError("):
                    raise
        raise AssertionError("the loop returns or raises")

    def status(self, path: str) -> HdfsStatus:
        found = self._call(self._client.get_file_info, path)
        return _parse_status(path.rpartition("/")[0], found)

    def list_folder(self, path: str, start_after: str) -> Iterator[HdfsStatus]:
        found = self._call(self._client.list_status, path)
        while some := self._call(lambda: [*islice(found, _LISTED_AT_ONCE)]):
            for status in some:
                parsed = _parse_status(path, status)
                if parsed.name > start_after:
                    yield parsed

    def log_edit(self, path: str, found: HdfsStatus) -> None:
        self._call(self._client.set_times, path, found.modified_ms, _LEAVES_TIME)


def _parse_status(folder: str, status: FileStatus) -> HdfsStatus:
    name = status.path.removeprefix(folder).lstrip("/")
    return HdfsStatus(name, status.isdir, status.length, status.modification_time)


def _read_chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield chunk


@contextmanager
def _translated() -> Iterator[None]:
    """Raise what HdfsClient says for what hdfs-native raises."""
    try:
        yield
    except FileNotFoundError as error:
        raise remote_failure("FileNotFoundException", str(error)) from error
    except FileExistsError as error:
        raise remote_failure("FileAlreadyExistsException", str(error)) from error
    except RuntimeError as error:
        told = _RPC_ERROR.match(str(error))
        if told is None:
            raise
        raise remote_failure(told[1], told[2].replace("\\n", "\n")) from error


_RECONNECT_LOCK = ForkSafeLock()
_clients: WeakSet[NativeHdfsClient] = WeakSet()


def _leak_clients() -> None:
    for client in list(_clients):
        client.leak()


os.register_at_fork(after_in_child=_leak_clients)
