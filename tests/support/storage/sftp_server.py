"""An SFTP server in the test process, over a folder: asyncssh's, with an honest rename or its own.

asyncssh's own rename replaces what is there: such servers have to be refused.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

USER, PASSWORD = "tester", "open sesame"


class _Passwords(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - asyncssh's signature
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == (USER, PASSWORD)


@dataclass
class SftpServer:
    """A server that runs.

    Attributes:
        port: on the loopback interface.
        known_hosts: a file with its key.
        calls: what was synced and renamed, in order.
        read_only: nothing may be opened to be written.
        lose_renames: so many of the next ones take effect, and their answers are lost.
    """

    port: int = 0
    known_hosts: Path = Path()
    calls: list[str] = field(default_factory=list)
    read_only: bool = False
    lose_renames: int = 0
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def options(self) -> dict[str, Any]:
        return {"username": USER, "password": PASSWORD, "known_hosts": str(self.known_hosts)}

    def cut(self) -> None:
        """Cut all connections."""
        done = threading.Event()

        def cut() -> None:
            while self.connections:
                self.connections.pop().abort()
            done.set()

        self.loop.call_soon_threadsafe(cut)
        done.wait()


@contextmanager
def run_sftp_server(
    folder: Path, *, honest: bool = True, folds: Path | None = None
) -> Iterator[SftpServer]:
    """Run a server whose files are those of this machine.

    Args:
        folder: for the server's key.
        honest: a rename fails if the name is taken.
        folds: below this folder names are found in any case, as on a Mac.
    """
    server = SftpServer()

    class Files(asyncssh.SFTPServer):
        def map_path(self, path: bytes) -> bytes:
            asked = Path(os.fsdecode(path))
            if folds is None or not asked.is_relative_to(folds):
                return path
            found = folds
            for part in asked.relative_to(folds).parts:
                there = [one.name for one in found.iterdir()] if found.is_dir() else []
                found /= next((one for one in there if one.lower() == part.lower()), part)
            return os.fsencode(found)

        def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> object:
            if server.read_only and pflags & asyncssh.FXF_WRITE:
                raise asyncssh.SFTPPermissionDenied("Permission denied")
            return super().open(path, pflags, attrs)

        def rename(self, oldpath: bytes, newpath: bytes) -> None:
            oldpath, newpath = self.map_path(oldpath), self.map_path(newpath)
            server.calls.append("rename")
            if honest:
                os.link(oldpath, newpath)
                Path(os.fsdecode(oldpath)).unlink()
            else:
                Path(os.fsdecode(oldpath)).rename(os.fsdecode(newpath))

            if server.lose_renames:
                server.lose_renames -= 1
                server.connections.pop().abort()

        def fsync(self, file_obj: Any) -> None:
            server.calls.append("fsync")
            os.fsync(file_obj.fileno())

    class Sessions(_Passwords):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            server.connections.append(conn)
            everybody.append(conn)

    key = asyncssh.generate_private_key("ssh-ed25519")
    ready = threading.Event()
    listeners: list[asyncssh.SSHAcceptor] = []
    everybody: list[asyncssh.SSHServerConnection] = []

    async def serve() -> None:
        listener = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[key], server_factory=Sessions, sftp_factory=Files
        )
        listeners.append(listener)
        server.port = listener.get_port()
        ready.set()

    def run() -> None:
        asyncio.set_event_loop(server.loop)
        server.loop.create_task(serve())
        server.loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(30)
    server.known_hosts = folder / "known_hosts"
    public = key.export_public_key().decode()
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {public}")

    async def end() -> None:
        listeners.pop().close()
        for connection in everybody:
            connection.abort()
        await asyncio.gather(*(connection.wait_closed() for connection in everybody))

    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(end(), server.loop).result(30)
        server.loop.call_soon_threadsafe(server.loop.stop)
        thread.join()
        server.loop.close()
