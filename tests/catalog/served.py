"""A catalog that is served over a store, and what pyiceberg reads by it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog

from txnlog.store import Store
from txnlog.ui.addresses import LOOPBACK, listen
from txnlog.ui.catalog.protocol import make_app
from txnlog.ui.connections import limited_server

TOKEN = "a-token-of-these-tests"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request got."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """The status and the type of an error in the protocol's words."""
        found = self.json["error"]
        assert found["code"] == self.status
        assert found["message"]
        return self.status, found["type"]


@dataclass(frozen=True, slots=True)
class Served:
    """A catalog at an address of this machine."""

    store: Store
    port: int

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def ask(
        self, path: str, method: str = "GET", *, token: str | None = TOKEN, **headers: str
    ) -> Reply:
        """One request; headers with '_' for '-'."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        connection = HTTPConnection(LOOPBACK, self.port, timeout=60)
        try:
            connection.request(method, path, headers=sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def catalog(self) -> Catalog:
        """A client of pyiceberg's."""
        return load_catalog("txnlog", type="rest", uri=self.url, token=TOKEN)

    def read(self, topic: str, columns: list[str] | None = None, **scan: Any) -> pa.Table:
        """By pyiceberg: columns under the names that the topic has for them."""
        table = self.catalog().load_table(("topics", topic))
        if columns is None:
            columns = [field.name for field in table.schema().fields]
        names = ["_tombstone" if name == "_deleted" else name for name in columns]
        found = table.scan(selected_fields=(*names,), **scan).to_arrow().select(names)
        renamed = ["_deleted" if name == "_tombstone" else name for name in names]
        return found.rename_columns(renamed)

    def check_same(self, topic: str) -> int:
        """Assert that the table has the rows of the topic; returns how many. NaN equals NaN.

        Lists of structs are left out: pyiceberg takes null ones for empty ones.
        """
        found = self.read(topic)
        found = found.drop_columns([name for name in ("legs",) if name in found.column_names])
        scan = self.store.scan(topic, columns=found.column_names, isolation_level="snapshot")
        wanted = scan.to_arrow()
        found = found.cast(wanted.schema)
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))
        return len(found)


@contextmanager
def served(store: Store) -> Iterator[Served]:
    """Serve a store's catalog until the block ends."""
    with listen(LOOPBACK, 0) as listener:
        server = limited_server(make_app(store, TOKEN))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield Served(store, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()
