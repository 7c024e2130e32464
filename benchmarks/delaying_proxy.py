"""A proxy before an HTTP server: each request waits, and is counted by its kind, as S3 has them.

Requests are read, so that each can be held back; answers pass as they are. Addresses in requests
stay, so that signatures hold. On the loopback interface alone, for measurements.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_HOST = "127.0.0.1"
_PIECE_BYTES = 1 << 16


@dataclass
class DelayingProxy:
    """What has passed: requests by kind. ``port`` is where it listens."""

    to_port: int
    delay_s: float
    port: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def take(self) -> dict[str, int]:
        """The counts since the last call."""
        taken = dict(sorted(self.counts.items()))
        self.counts.clear()
        return taken

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client by one of its own to the server."""
        answers, requests = await asyncio.open_connection(_HOST, self.to_port)
        back = asyncio.create_task(_relay(answers, writer))
        try:
            while head := await _head(reader):
                self.counts[_kind(head)] += 1
                await asyncio.sleep(self.delay_s)
                requests.write(head)
                await _body(head, reader, requests)
                await requests.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            requests.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await back


@contextmanager
def delaying(to_port: int, delay_s: float) -> Iterator[DelayingProxy]:
    """A proxy in a thread, which ends with the block."""
    proxy = DelayingProxy(to_port, delay_s)
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def listen() -> None:
        server = await asyncio.start_server(proxy.handle, _HOST, 0, limit=1 << 20)
        proxy.port = server.sockets[0].getsockname()[1]
        ready.set()

    def run() -> None:
        loop.run_until_complete(listen())
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the server ends the connection: then the client must learn it, to open another."""
    try:
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


async def _body(head: bytes, reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    headers = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"chunked" in headers.get(b"transfer-encoding", b""):
        while True:
            line = await reader.readuntil(b"\r\n")
            to.write(line)
            size = int(line.split(b";")[0], 16)
            to.write(await reader.readexactly(size + 2))
            if not size:
                return
    left = int(headers.get(b"content-length", b"0"))
    while left:
        piece = await reader.read(min(left, _PIECE_BYTES))
        if not piece:
            raise ConnectionError("the client has gone")
        to.write(piece)
        await to.drain()
        left -= len(piece)


def _kind(head: bytes) -> str:
    """What S3 calls a request, roughly."""
    method, target = head.split(b" ", 2)[:2]
    _, _, query = target.partition(b"?")
    if method == b"GET" and (b"list-type" in query or b"prefix=" in query):
        return "list"
    if method == b"PUT" and b"x-amz-copy-source" in head.lower():
        return "copy"
    if b"uploads" in query or b"uploadId" in query:
        return "part" if method == b"PUT" else "begin or end of an upload"
    return {"GET": "get", "PUT": "put", "HEAD": "head", "POST": "delete", "DELETE": "delete"}.get(
        method.decode(), "other"
    )
