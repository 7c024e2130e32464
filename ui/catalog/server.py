"""Serves the catalog until it is interrupted."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from txnlog.errors import InvalidOption
from txnlog.store import Store
from txnlog.ui.addresses import LOOPBACK, is_loopback, listen, named_in_url

_LEAST_TOKEN = 16
_MOST_TOKEN_BYTES = 4096


def serve(
    store: Store,
    *,
    announce: Callable[[str, str | None], None],
    port: int = 0,
    host: str = LOOPBACK,
    token_file: Path | None = None,
) -> None:
    """Answer for a store's topics as an Iceberg REST catalog; returns when it is interrupted.

    ``announce`` is called with the URL once it is ready, and with the token if one was made up.
    Port 0 takes one that is free. A ``host`` that other machines reach needs a token of your own,
    which ``token_file`` holds; None makes one up.

    Raises InvalidOption: the address needs a token, the file has none, the address cannot be
    listened at, engines cannot reach the store's files, or it is a standby.
    """
    import pyarrow as pa

    from txnlog.tables.table_files import iceberg_url
    from txnlog.ui.catalog.protocol import make_app
    from txnlog.ui.connections import limited_server

    iceberg_url(store.storage)  # said now, not to each client
    if store.storage.kind() == "standby":
        raise InvalidOption(
            f"{store.url} is a standby, which can be read only, and a catalog writes the manifests "
            "of its tables into the store: serve the source, or promote the standby"
        )
    if token_file is None and not is_loopback(host):
        raise InvalidOption(
            f"{host} can be reached from other machines: give a token by --token-file, or leave "
            "the host out"
        )
    # Arrow's own pool keeps what it had for the largest answer.
    pa.set_memory_pool(pa.system_memory_pool())
    token = secrets.token_urlsafe(32) if token_file is None else read_token(token_file)
    with listen(host, port) as listener:
        actual = listener.getsockname()[1]
        announce(f"http://{named_in_url(host)}:{actual}", token if token_file is None else None)
        limited_server(make_app(store, token)).run(sockets=[listener])


def read_token(path: Path) -> str:
    """The token in a file: its only line. Raises InvalidOption, without showing it."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_TOKEN_BYTES + 1)
    except OSError as error:
        raise InvalidOption(f"the token cannot be read: {error}") from error
    try:
        token = data.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    usable = len(data) <= _MOST_TOKEN_BYTES and token.isprintable() and " " not in token
    if not usable or len(token) < _LEAST_TOKEN:
        raise InvalidOption(
            f"{path} has no token: it must be one line of at least {_LEAST_TOKEN} ASCII "
            "characters without spaces, such as `openssl rand -hex 32` prints"
        )
    return token
