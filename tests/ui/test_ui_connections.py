"""The console's own server: where it listens, and who may keep a connection."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_address

import pytest
import uvicorn

from txnlog.ui import connections
from txnlog.ui.addresses import listen_alone
from txnlog.ui.connections import LimitedProtocol

LONG_S = 30.0


async def answer(scope: object, receive: object, send: object) -> None:
    """Reads the whole request, as a page with a form does, and answers."""
    while (await receive())["more_body"]:  # type: ignore[operator]
        pass
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}
    await send(start)  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b"seen"})  # type: ignore[operator]


@contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """A server of these connections, in a thread."""
    config = uvicorn.Config(
        answer,
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        log_level="critical",
    )
    running = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(running.serve([listener])))
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            running.should_exit = True
            thread.join()


def is_ended(client: socket.socket) -> bool:
    """Whether the other side ends the connection without an answer."""
    client.settimeout(LONG_S)
    try:
        return client.recv(1000) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n",
    ],
    ids=["nothing", "headers", "body", "next"],
)
def test_a_request_that_does_not_come_is_not_waited_for(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of it has come; it is as if the client had gone."""
    monkeypatch.setattr(connections, "RECEIVE_S", 0.1)
    with serving() as address, closing(socket.create_connection(address)) as client:
        client.sendall(sent)
        if sent.count(b"GET") == 2:
            client.settimeout(LONG_S)
            got = b""
            while b"seen" not in got:
                got += client.recv(1000)
        assert is_ended(client)


def test_who_opens_many_connections_takes_them_from_himself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the address that has most the oldest one is closed; others keep theirs."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 4)
    with serving() as address:
        owner = socket.create_connection(address, source_address=("127.0.0.7", 0))
        crowd = [socket.create_connection(address) for _ in range(6)]
        assert [is_ended(client) for client in crowd[:3]] == [True] * 3
        for client in (owner, *crowd[3:]):
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            client.settimeout(LONG_S)
            with client.makefile("rb") as got:
                assert got.read().endswith(b"seen")
        for client in (owner, *crowd):
            client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.1 alone is this machine")
def test_it_has_an_address_of_its_own() -> None:
    """Servers at 127.0.0.1 do not get its cookie: browsers send one to all ports of a host."""
    addresses = set()
    for _ in range(3):
        with listen_alone(0) as listener:
            addresses.add(listener.getsockname()[0])
    assert len(addresses) == 3
    assert all(ip_address(address).is_loopback for address in addresses)


def test_where_there_is_one_such_address_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.create_server

    def of_one_address(address: tuple[str, int], **options: object) -> socket.socket:
        if address[0] != "127.0.0.1":
            raise OSError("Can't assign requested address")
        return real(address, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "create_server", of_one_address)
    with listen_alone(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
