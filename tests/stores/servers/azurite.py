"""Azurite: Microsoft's emulator of Azure Blob Storage, over a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.stores.servers import (
    StoreServer,
    building,
    cache_folder,
    free_port,
    listens,
    run_tool,
    running,
)

VERSION = "3.35.0"
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The same in every Azurite, and public."""
_CONTAINER = "test"


@contextmanager
def run(folder: Path) -> Iterator[StoreServer]:
    """Run it over a folder below ``folder``."""
    port = free_port()
    command = ["node", _install(), "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    command += ["--location", str(folder / "data"), "--blobPort", str(port)]
    with running(command, folder, ready=partial(listens, port)):
        connection = (
            f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/{_ACCOUNT};"
        )
        _make_container(connection)
        yield StoreServer(
            "Azurite", VERSION, f"az://{_CONTAINER}", {"connection_string": connection}
        )


def _install() -> str:
    folder = cache_folder() / f"azurite-{VERSION}"
    program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not program.exists():
        with building():
            if not program.exists():
                folder.mkdir(exist_ok=True)
                run_tool(["npm", "install", "--silent", "--prefix", folder, f"azurite@{VERSION}"])
    return str(program)


def _make_container(connection: str) -> None:
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient.from_connection_string(connection) as client:
        client.create_container(_CONTAINER)
