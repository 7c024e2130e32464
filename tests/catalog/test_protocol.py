"""The protocol as clients speak it, those with bad intentions too."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import txnlog
from tests.catalog.served import TOKEN, Served, served
from txnlog.errors import InvalidOption, StorageError
from txnlog.replication import Follower
from txnlog.store import Store, attach
from txnlog.tables.fresh_table import FreshTables
from txnlog.testing import HeapStorage
from txnlog.ui.catalog.server import read_token, serve

TABLES = "/v1/namespaces/topics/tables"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Topics ``a`` to ``e``, typed ones."""
    store = txnlog.open(str(tmp_path_factory.mktemp("catalog")), create=True)
    for name in "abcde":
        store.topics.create(name, schema=pa.schema([("x", pa.int64())]))
    with store.producer() as producer:
        producer.send("a", {"x": 1})
    with served(store) as opened:
        yield opened


@pytest.mark.parametrize(
    "token", [None, "", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ä", "x" * 5000]
)
@pytest.mark.parametrize("path", ["/v1/config", f"{TABLES}/a", "/", "/v1/nothing"])
def test_nothing_is_told_without_the_token(catalog: Served, token: str | None, path: str) -> None:
    sent = None if token is None else token.encode().decode("latin-1")
    for method in ("GET", "HEAD", "POST"):
        reply = catalog.ask(path, method, token=sent)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert reply.error == (401, "NotAuthorizedException")
        assert TOKEN.encode() not in reply.body
    for other in (f"Basic {TOKEN}", TOKEN, f"bearer{TOKEN}"):
        assert catalog.ask(path, token=None, authorization=other).status == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/namespaces"),
        ("DELETE", "/v1/namespaces/topics"),
        ("POST", "/v1/namespaces/topics/properties"),
        ("POST", TABLES),
        ("POST", f"{TABLES}/a"),
        ("DELETE", f"{TABLES}/a?purgeRequested=true"),
        ("POST", "/v1/tables/rename"),
        ("POST", "/v1/namespaces/topics/register"),
        ("POST", "/v1/namespaces/topics/views"),
        ("POST", "/v1/transactions/commit"),
        ("POST", "/v1/oauth/tokens"),
        ("PUT", f"{TABLES}/a"),
    ],
)
def test_what_writes_is_refused(catalog: Served, method: str, path: str) -> None:
    before = catalog.ask(f"{TABLES}/a").body
    assert catalog.ask(path, method).error == (406, "UnsupportedOperationException")
    assert catalog.ask(f"{TABLES}/a").body == before


def test_reports_of_engines_are_taken(catalog: Served) -> None:
    """Iceberg's Java library sends them after each scan, and warns if it may not."""
    assert catalog.ask(f"{TABLES}/a/metrics", "POST").status == 204


@pytest.mark.parametrize(
    "name",
    ["none", "..", ".", "a%00b", "%2e%2e", "a%0a", "a%5Cb", "x" * 300, "%F0%9F%98%80", "a+b"],
)
def test_an_unknown_table_is_none(catalog: Served, name: str) -> None:
    reply = catalog.ask(f"{TABLES}/{name}")
    assert reply.error == (404, "NoSuchTableException")
    assert catalog.ask(f"{TABLES}/{name}", "HEAD").status == 404


@pytest.mark.parametrize("name", ["none", "topics%1Fa", "..", "topics%00", "%20"])
def test_there_is_one_namespace(catalog: Served, name: str) -> None:
    for path in (f"/v1/namespaces/{name}", f"/v1/namespaces/{name}/tables"):
        assert catalog.ask(path).error == (404, "NoSuchNamespaceException")
    assert catalog.ask(f"/v1/namespaces/{name}", "HEAD").status == 404
    unknown = catalog.ask(f"/v1/namespaces/{name}/tables/a")
    assert unknown.error == (404, "NoSuchTableException")
    assert catalog.ask("/v1/namespaces/topics", "HEAD").status == 204
    assert catalog.ask("/v1/namespaces").json == {"namespaces": [["topics"]]}
    assert catalog.ask("/v1/namespaces?parent=topics").json == {"namespaces": []}
    assert catalog.ask("/v1/namespaces?parent=x").error == (404, "NoSuchNamespaceException")


@pytest.mark.parametrize(
    "path", ["/", "/v2/config", "/v1/namespaces/topics/tables/a/plan", f"{TABLES}/a%2F..%2Fb", "//"]
)
def test_an_unknown_address_is_none(catalog: Served, path: str) -> None:
    assert catalog.ask(path).error == (404, "NotFoundException")


def test_tables_are_listed_in_pages(catalog: Served) -> None:
    found, token = [], ""
    while True:
        page = catalog.ask(f"{TABLES}?pageSize=2&pageToken={token}").json
        found.append([one["name"] for one in page["identifiers"]])
        if (token := page.get("next-page-token")) is None:
            break
    assert found == [["a", "b"], ["c", "d"], ["e"]]
    assert len(catalog.ask(TABLES).json["identifiers"]) == 5
    assert len(catalog.ask(f"{TABLES}?pageSize=999999999").json["identifiers"]) == 5
    assert catalog.ask(f"{TABLES}?pageToken=zzz").json["identifiers"] == []
    for wrong in ("0", "-1", "x", "1.5", "9" * 30, "%D9%A1"):
        assert catalog.ask(f"{TABLES}?pageSize={wrong}").error == (400, "BadRequestException")


def test_what_a_client_has_is_not_sent_again(catalog: Served) -> None:
    first = catalog.ask(f"{TABLES}/a")
    again = catalog.ask(f"{TABLES}/a", if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    with catalog.store.producer() as producer:
        producer.send("a", {"x": 2})
    newer = catalog.ask(f"{TABLES}/a", if_none_match=first.headers["etag"])
    assert newer.status == 200
    assert newer.json["metadata-location"] != first.json["metadata-location"]
    assert newer.headers["cache-control"] == "no-store"


def test_failures_are_said_in_the_protocols_words(
    catalog: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A storage that fails is a moment's trouble; of a bug nothing but the log tells."""

    def fail(error: Exception) -> None:
        def load(*_: object) -> None:
            raise error

        monkeypatch.setattr(FreshTables, "load", load)

    fail(StorageError("the disk is away"))
    assert catalog.ask(f"{TABLES}/a").error == (503, "ServiceUnavailableException")
    fail(ZeroDivisionError("a secret"))
    reply = catalog.ask(f"{TABLES}/a")
    assert reply.error == (500, "InternalServerError")
    assert b"secret" not in reply.body
    assert TOKEN not in caplog.text


def test_a_large_or_broken_request_ends_nothing(catalog: Served) -> None:
    """Headers without end, a body that is never sent, what is no HTTP: others go on."""
    for data in (
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
        b"POST /v1/namespaces HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n{",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET " + b"/" * 200_000 + b" HTTP/1.1\r\n\r\n",
    ):
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", catalog.port)) as connection,
        ):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
    assert catalog.ask("/v1/config").status == 200


def test_engines_must_reach_the_store(tmp_path: Path) -> None:
    """Said when the server starts, not to each client; so is what is wrong with a token."""
    told: list[object] = []

    def announce(*said: object) -> None:
        told.append(said)

    in_memory = attach(HeapStorage(), create=True)
    with pytest.raises(InvalidOption, match="engines that read tables cannot read"):
        serve(in_memory, announce=announce)
    store: Store = txnlog.open(str(tmp_path / "s"), create=True)
    Follower(store, str(tmp_path / "standby")).follow()
    with pytest.raises(InvalidOption, match="is a standby"):
        serve(txnlog.open(str(tmp_path / "standby")), announce=announce)
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.com"):
        with pytest.raises(InvalidOption, match="--token-file"):
            serve(store, announce=announce, host=host)
    assert not told


@pytest.mark.parametrize(
    "content",
    [b"", b"short\n", b"two words of many letters", b"x" * 5000, b"\xff" * 20, b"a\n" * 20],
)
def test_a_token_is_one_long_word(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(InvalidOption) as refused:
        read_token(path)
    assert not content.strip() or content.decode("latin-1") not in str(refused.value)
    with pytest.raises(InvalidOption, match="cannot be read"):
        read_token(tmp_path / "none")
    path.write_text("0123456789abcdef\n")
    assert read_token(path) == "0123456789abcdef"


def test_metadata_lies_in_the_store_too(catalog: Served) -> None:
    """For readers of files who are given its address."""
    answer = catalog.ask(f"{TABLES}/a").json
    path = answer["metadata-location"].removeprefix("file://")
    assert json.loads(Path(path).read_text()) == answer["metadata"]


def test_a_server_gives_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's own pool would keep 45 MB of the largest answer."""
    pools: list[pa.MemoryPool] = []
    monkeypatch.setattr(pa, "set_memory_pool", pools.append)

    class Ready(Exception):
        pass

    def announce(*_: object) -> None:
        raise Ready

    store = txnlog.open(str(tmp_path / "store"), create=True)
    with pytest.raises(Ready):
        serve(store, announce=announce)
    assert [pool.backend_name for pool in pools] == ["system"]
