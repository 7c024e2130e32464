"""The server of each of our sites: how many connections, and how long each may take to ask."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 200
RECEIVE_S = 20.0
"""A request must have come by then, its headers and its body; so must the next one."""

_NUMBERS = itertools.count()


def limited_server(app: ASGIApp) -> uvicorn.Server:
    """A server that tells little and trusts no headers of proxies; it is given an open socket."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=LimitedProtocol,
        ws="none",
        proxy_headers=False,
        lifespan="off",
    )
    return uvicorn.Server(config)


class LimitedProtocol(H11Protocol):
    """A connection that ends if its request does not come, or if there are too many.

    If there are, one of the address that has most of them makes place, the oldest: an address that
    opens many takes nothing from others.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.number = next(_NUMBERS)
        self._watch()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_place()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_watching()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_watching()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(RECEIVE_S, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_place(self) -> None:
        others: list[Any] = [*self.connections]
        counts = Counter(_address(each) for each in others)
        most = max(counts.values())
        crowd = (each for each in others if counts[_address(each)] == most)
        oldest = min(crowd, key=lambda each: each.number)
        # Not only asked to close: it may wait for somebody who never reads.
        oldest.connections.discard(oldest)
        oldest.transport.abort()


def _address(connection: LimitedProtocol) -> str:
    return connection.client[0] if connection.client else ""
