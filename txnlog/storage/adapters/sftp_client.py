"""The requests to an SFTP server. Imports asyncssh; nothing else may.

Knows paths and the protocol; nothing of stores.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from typing import Any, TypeVar

import asyncssh
from asyncssh.sftp import (
    SFTPClient,
    SFTPClientFile,
    SFTPError,
    SFTPFailure,
    SFTPFileAlreadyExists,
    SFTPNoSuchFile,
    SFTPNoSuchPath,
    SFTPOpUnsupported,
    SFTPPermissionDenied,
)
from fsspec.asyn import get_loop, sync

from txnlog.storage.whole import check_whole

T = TypeVar("T")

_CHANNELS = 4
"""A server serves a channel's requests one by one, and each has its own process there."""
_LOGIN_S = 20
_ALIVE_S = 15
_ANSWER_S = 120
"""A server that has not answered by then hangs: SSH goes on, but what reads its disk does not."""
_LONG_S = 1200
"""A large folder takes many requests, one after the other; what others put may be any size."""
_SLOWEST_BYTES_S = 64 << 10
"""What is read or written may take so much longer."""
_PIECE_BYTES = 4 << 20
"""A file that is read whole comes in such pieces, each in its own time."""
_MISSING = (SFTPNoSuchFile, SFTPNoSuchPath)
_LOST = (asyncssh.ConnectionLost, asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection)


class SftpClient:
    """A connection with a few channels, for any number of threads.

    Options are asyncssh's: username, password, client_keys, passphrase, known_hosts.
    """

    def __init__(self, host: str, port: int, options: Mapping[str, Any]) -> None:
        given = dict(options)
        if str(given.get("known_hosts", "")).lower() == "none":
            given["known_hosts"] = None  # as asyncssh has it: any server is taken for the right one
        self.is_lost = False
        self._loop = get_loop()
        self._connection: asyncssh.SSHClientConnection
        self._channels: Iterator[SFTPClient] = iter(())
        sync(self._loop, self._connect, host, port, given, timeout=_ANSWER_S)

    async def _connect(self, host: str, port: int, options: dict[str, Any]) -> None:
        connection = await asyncssh.connect(
            host,
            port,
            connect_timeout=_LOGIN_S,
            login_timeout=_LOGIN_S,
            keepalive_interval=_ALIVE_S,
            keepalive_count_max=3,
            **options,
        )
        try:
            calls = [connection.start_sftp_client() for _ in range(_CHANNELS)]
            self._channels = cycle(await asyncio.gather(*calls))
        except BaseException:  # also if that took too long
            connection.abort()
            raise
        self._connection = connection

    def _ask(
        self, request: Callable[[], Coroutine[Any, Any, T]], size_bytes: int = 0, limit_s: int = 0
    ) -> T:
        timeout_s = (limit_s or _ANSWER_S) + size_bytes / _SLOWEST_BYTES_S
        try:
            answer: T = sync(self._loop, request, timeout=timeout_s)
        except (*_LOST, ConnectionError):
            self.is_lost = True
            raise
        except TimeoutError as error:
            # What others ask over this connection waits, too: it ends with it.
            self.is_lost = True
            self._loop.call_soon_threadsafe(self._connection.abort)
            raise TimeoutError(f"the server has not answered for {timeout_s:.0f} s") from error
        return answer

    @contextmanager
    def writing(self, path: str) -> Iterator[_NewFile]:
        """A new file to be written; unless it is renamed meanwhile, it goes again."""
        channel = next(self._channels)
        file = _NewFile(self, self._ask(lambda: self._create(channel, path)))
        try:
            yield file
        finally:
            if not self.is_lost:
                self._ask(file.close)
                if not file.is_renamed:
                    self.remove(path)

    async def _create(self, channel: SFTPClient, path: str) -> SFTPClientFile:
        try:
            return await channel.open(path, "xb")
        except _MISSING:
            await channel.makedirs(path.rpartition("/")[0], exist_ok=True)
            return await channel.open(path, "xb")

    def rename(self, old: str, new: str) -> bool:
        """Give a file a name that is free; False if it was refused, for whatever reason."""
        channel = next(self._channels)

        async def rename() -> bool:
            try:
                await channel.rename(old, new)
            except (SFTPFailure, SFTPFileAlreadyExists, *_MISSING):
                return False
            return True

        return self._ask(rename)

    def make_folders(self, path: str) -> None:
        channel = next(self._channels)

        async def make() -> None:
            # Others make the same, or remove it: the next use notices.
            with suppress(SFTPFailure, *_MISSING):
                await channel.makedirs(path, exist_ok=True)

        self._ask(make)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        channel = next(self._channels)

        async def remove() -> None:
            with suppress(*_MISSING):
                await channel.remove(path)

        self._ask(remove)

    def remove_folder(self, path: str) -> bool:
        """Remove a folder if it is empty; whether it was."""
        channel = next(self._channels)

        async def remove() -> bool:
            try:
                await channel.rmdir(path)
            except (SFTPFailure, *_MISSING):
                return False
            return True

        return self._ask(remove)

    def stat(self, path: str) -> tuple[int, int] | None:
        """Size in bytes and time of the last change in ms; None if there is no such file."""
        channel = next(self._channels)

        async def look() -> tuple[int, int] | None:
            try:
                found = await channel.stat(path)
            except _MISSING:
                return None
            return int(found.size or 0), int(found.mtime or 0) * 1000

        return self._ask(look)

    def read(self, path: str, start: int, stop: int | None) -> bytes | None:
        """Bytes of a file, fewer where it ends; None if there is no such file."""
        channel = next(self._channels)
        piece_bytes = _PIECE_BYTES if stop is None else stop - start
        rest: list[int] = []

        async def read_first() -> tuple[Any, bytes] | None:
            try:
                file = await channel.open(path, "rb")
            except _MISSING:
                return None
            try:
                end = stop
                if end is None:
                    end = (await file.stat()).size or 0
                    check_whole(end)
                first: Any = await file.read(min(end - start, piece_bytes), start)
                rest.extend(range(start + piece_bytes, end, piece_bytes))
                return file, bytes(first)
            finally:
                if not rest:
                    await file.close()

        found = self._ask(read_first, 0 if stop is None else piece_bytes)
        if found is None:
            return None
        file, pieces = found[0], [found[1]]
        try:
            pieces += [self._ask(partial(file.read, piece_bytes, at), piece_bytes) for at in rest]
        finally:
            if rest and not self.is_lost:
                self._ask(file.close)
        return b"".join(pieces)

    def sync(self, path: str) -> bool:
        """Make a file durable if the server can; returns whether the file exists."""
        channel = next(self._channels)

        async def open_file() -> SFTPClientFile:
            try:
                return await channel.open(path, "r+b")
            except (SFTPPermissionDenied, SFTPFailure):
                # Who may only read can sync all the same, but on few systems.
                return await channel.open(path, "rb")

        async def sync_file() -> bool:
            try:
                file = await open_file()
            except _MISSING:
                return False
            async with file:
                await _sync(file)
            return True

        return self._ask(sync_file, limit_s=_LONG_S)

    def list_folder(self, path: str) -> list[tuple[str, int | None]]:
        """Names with sizes in bytes, of folders None; nothing of a folder that is not there."""
        channel = next(self._channels)

        async def look() -> list[tuple[str, int | None]]:
            found: list[tuple[str, int | None]] = []
            try:
                async for entry in channel.scandir(path):
                    mode = entry.attrs.permissions or 0
                    if stat.S_ISREG(mode):
                        found.append((str(entry.filename), int(entry.attrs.size or 0)))
                    elif stat.S_ISDIR(mode) and entry.filename not in (".", ".."):
                        found.append((str(entry.filename), None))
            except _MISSING:
                return []
            return found

        return self._ask(look, limit_s=_LONG_S)


class _NewFile:
    """A file that is being written."""

    def __init__(self, client: SftpClient, file: SFTPClientFile) -> None:
        self.is_renamed = False
        self._written_bytes = 0
        self._client = client
        self._file = file

    def write(self, data: bytes) -> None:
        self._client._ask(lambda: self._file.write(data), len(data))  # noqa: SLF001
        self._written_bytes += len(data)

    def sync(self) -> None:
        """Make it durable under all its names, if the server can."""
        self._client._ask(lambda: _sync(self._file), self._written_bytes)  # noqa: SLF001

    async def close(self) -> None:
        await self._file.close()


async def _sync(file: SFTPClientFile) -> None:
    with suppress(SFTPOpUnsupported):
        await file.fsync()


def is_retriable(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    refused = (
        SFTPPermissionDenied,
        asyncssh.PermissionDenied,
        asyncssh.HostKeyNotVerifiable,
        FileExistsError,
        ValueError,
    )
    return not isinstance(error, refused)


def hint_for(error: BaseException) -> str | None:
    """What to do about an error; None if there is nothing special to say."""
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return (
            "the server's key is not known: add it by `ssh-keyscan HOST >> ~/.ssh/known_hosts` "
            "after checking it, or name a file as the storage option known_hosts"
        )
    if isinstance(error, (asyncssh.PermissionDenied, ValueError)):
        return "check username, password, client_keys and passphrase in storage_options"
    if isinstance(error, SFTPPermissionDenied):
        return "permission is denied: the user needs to write to that folder"
    if isinstance(error, (*_LOST, TimeoutError)):
        return "the connection was lost: check the server and the network"
    if isinstance(error, SFTPError) and "space" in str(error).lower():
        return "the server's disk is full"
    return None
