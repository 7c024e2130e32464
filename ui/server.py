"""Serves the console until it is interrupted."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from txnlog.errors import InvalidOption
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.ui.access import Access, loopback_hosts, named_hosts, public_host
from txnlog.ui.addresses import is_loopback, listen, listen_alone, named_in_url
from txnlog.ui.app import make_app
from txnlog.ui.changes import ChangeLog
from txnlog.ui.console import Console


def serve(
    store: Store,
    *,
    announce: Callable[[str], None],
    port: int = 0,
    host: str | None = None,
    password: str | None = None,
    public_names: Sequence[str] = (),
    allow_changes: bool = False,
    log: Callable[[str], object] | None = None,
) -> None:
    """Show a store in the browser; returns when it is interrupted.

    ``announce`` is called with the URL to open, once it is ready; ``log`` with a line for each
    change. Port 0 takes one that is free. Another ``host`` than this machine's own needs a
    ``password``, which is asked for in place of a token in the URL; None is an address of this
    machine that no other server has, as browsers send cookies to all ports of a host.
    ``public_names`` are what browsers call a proxy before it, only with a password.

    Raises InvalidOption: the address or a public name needs a password, that is empty, a name is
    none, or the address cannot be listened at.
    """
    from txnlog.ui.connections import limited_server

    if password is not None and not password.strip():
        raise InvalidOption("the password is empty: set another one, or none")
    if password is None and host is not None and not is_loopback(host):
        raise InvalidOption(
            f"{host} can be reached from other machines: set a password, or leave the host out"
        )
    if password is None and public_names:
        raise InvalidOption(
            f"who calls the console {public_names[0]!r} comes from other machines: set a password"
        )
    public = frozenset(map(public_host, public_names))
    with listen_alone(port) if host is None else listen(host, port) as listener:
        host, actual = (host or listener.getsockname()[0]), listener.getsockname()[1]
        named = named_in_url(host)
        hosts = loopback_hosts(actual) | named_hosts([named], actual)
        if not is_loopback(host):
            hosts |= named_hosts((socket.gethostname(), socket.getfqdn()), actual)
        console = make_console(
            store,
            Access(hosts, password, public_hosts=public),
            allow_changes=allow_changes,
            log=log,
        )
        query = "" if password is not None else f"?token={console.access.token}"
        announce(f"http://{named}:{actual}/{query}")
        limited_server(make_app(console)).run(sockets=[listener])


def make_console(
    store: Store,
    access: Access,
    *,
    allow_changes: bool = False,
    log: Callable[[str], object] | None = None,
) -> Console:
    """A console that counts what it asks of the storage."""
    counting = CountingStorage(store.storage)
    return Console(attach(counting), counting, access, allow_changes, changes=ChangeLog(log))
