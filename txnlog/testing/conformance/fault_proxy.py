"""A TCP proxy in front of a server that cuts connections on purpose, decided by a seed.

It knows bytes and no protocol, so it serves any, even encrypted ones. Bytes that a client sends
after an answer count as a request, the bytes that follow as its answer.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_CHUNK_BYTES = 64 << 10
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class ProxyFaults:
    """How often connections are cut, as probabilities for each request.

    ``refuse``: before it has reached the server. ``lose``: when the server has answered, so that it
    took effect and nobody knows. ``truncate``: in the middle of the answer's first piece.
    """

    refuse: float = 0.0
    lose: float = 0.0
    truncate: float = 0.0


class FaultProxy:
    """Forwards connections to ``host:port``, from ``self.port`` of the loopback interface.

    ``counts`` says what was done: requests, refused, lost, truncated. ``faults`` may be replaced at
    any time.
    """

    def __init__(self, host: str, port: int, faults: ProxyFaults, seed: int = 0) -> None:
        self.faults = faults
        self.counts: Counter[str] = Counter()
        self._target = host, port
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @contextmanager
    def running(self) -> Iterator[FaultProxy]:
        """Serve until the block ends."""
        self._thread.start()
        try:
            yield self
        finally:
            # Closing alone does not wake a thread in accept().
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            with self._lock:
                remaining = [*self._open]
            for connection in remaining:
                _cut(connection)
            self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                _cut(client)
                continue
            for connection in (client, server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            pair = _Pair(client, server)
            for work in (self._pass_requests, self._pass_answers):
                threading.Thread(target=work, args=(pair,), daemon=True).start()

    def _pass_requests(self, pair: _Pair) -> None:
        with self._ending(pair, pair.server):
            while data := pair.client.recv(_CHUNK_BYTES):
                if pair.answering:
                    pair.answering = False
                    pair.fault = self._draw()
                if pair.fault == "refused":
                    return
                pair.server.sendall(data)

    def _pass_answers(self, pair: _Pair) -> None:
        with self._ending(pair, pair.client):
            while data := pair.server.recv(_CHUNK_BYTES):
                pair.answering = True
                if pair.fault == "truncated":
                    pair.client.sendall(data[: len(data) // 2])
                if pair.fault:
                    return
                pair.client.sendall(data)

    def _draw(self) -> str:
        """The fault of a request; "" for none."""
        faults = self.faults
        with self._lock:
            self.counts["requests"] += 1
            lot = self._chance.random()
            for name, share in (
                ("refused", faults.refuse),
                ("lost", faults.lose),
                ("truncated", faults.truncate),
            ):
                if lot < share:
                    self.counts[name] += 1
                    return name
                lot -= share
        return ""

    @contextmanager
    def _ending(self, pair: _Pair, receiver: socket.socket) -> Iterator[None]:
        """Forward one side's end of data; cut both after an error."""
        failed = False
        try:
            yield
            receiver.shutdown(socket.SHUT_WR)
        except OSError:
            failed = True
        with self._lock:
            pair.directions -= 1
            ended = failed or bool(pair.fault) or not pair.directions
            if ended:
                self._open -= {pair.client, pair.server}
        for connection in (pair.client, pair.server) if ended else ():
            if failed or pair.fault:
                _cut(connection)
            else:
                connection.close()


@dataclass(slots=True)
class _Pair:
    """A client's connection and the server's, and the fate of the current request."""

    client: socket.socket
    server: socket.socket
    answering: bool = True
    """The server has sent since the client did: the client's next bytes are a request."""
    fault: str = ""
    directions: int = 2
    """How many directions may still carry bytes."""


def _cut(connection: socket.socket) -> None:
    """Reset a connection: the waiting side notices at once."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        connection.close()
