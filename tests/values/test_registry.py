"""A registry over HTTP: what is asked, how often, and what is never sent or said."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.values.registry_server import MILLION, Registry, serving
from txnlog.errors import InvalidOption, InvalidSchema, StorageError, TxnlogError, UnknownSchema
from txnlog.values import SchemaReference, SchemaRegistry, ValueReader, ValueWriter

V1 = json.dumps({"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]})
V2 = json.dumps(
    {
        "type": "record",
        "name": "O",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": "string", "default": "-"},
        ],
    }
)


@pytest.fixture
def registry() -> Iterator[Registry]:
    """With two versions of ``shop/orders-value``, ids 70 and 71."""
    with serving() as found:
        found.add("shop/orders-value", 70, V1)
        found.add("shop/orders-value", 71, V2, schemaType="AVRO")
        yield found


def test_each_id_is_asked_for_once(registry: Registry) -> None:
    """However many values carry it; if it is unknown, in each batch, as it may come."""
    schemas = SchemaRegistry(registry.url + "/")
    reader = ValueReader(schemas, "avro", subject="shop/orders-value")
    old = ValueWriter(schemas, "avro", subject="shop/orders-value", version=1)
    new = ValueWriter(schemas, "avro", subject="shop/orders-value")
    registry.asked.clear()
    values = [old({"id": 1}), new({"id": 2, "note": "n"}), b"\0\0\0\0\x09", b"\0\0\0\0\x09"]
    for _ in range(3):
        found = reader.decode(pa.array(values, pa.binary()))
    assert found.columns.column("note").to_pylist() == ["-", "n", None, None]
    assert f"the registry {registry.url} has no schema with id 9" in found.errors[3].as_py()
    assert registry.asked == ["/schemas/ids/9"] * 3
    arrived = pickle.loads(pickle.dumps(reader))
    assert arrived(old({"id": 1})) == {"id": 1, "note": "-"}


def test_references_are_followed_within_the_registry(registry: Registry) -> None:
    """By their subjects and versions, whatever they are called."""
    registry.add("item", 80, '{"type": "record", "name": "Item", "fields": []}')
    order = {"type": "record", "name": "P", "fields": [{"name": "i", "type": "Item"}]}
    references = [{"name": "http://elsewhere/Item", "subject": "item", "version": 1}]
    registry.add("order", 81, json.dumps(order), references=references)
    schemas = SchemaRegistry(registry.url)
    assert schemas.by_id(81).references == (SchemaReference("http://elsewhere/Item", "item", 1),)
    assert ValueReader(schemas, "avro", subject="order").schema.names == ["i"]
    assert {path.split("/")[1] for path in registry.asked} == {"schemas", "subjects"}


@pytest.mark.parametrize(
    ("how", "sent"),
    [
        ({"user_info": "key:top-secret"}, "Basic a2V5OnRvcC1zZWNyZXQ="),
        ({"token": "top-secret"}, "Bearer top-secret"),
        ({}, None),
    ],
)
def test_credentials_are_sent_and_never_said(
    registry: Registry,
    how: dict[str, str],
    sent: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """To the registry alone: not where it redirects to; in no message, log or representation."""
    caplog.set_level(logging.DEBUG)
    schemas = SchemaRegistry(registry.url, **how)  # type: ignore[arg-type]
    schemas.by_id(70)
    assert registry.credentials == [sent]
    said = [repr(schemas)]
    with serving() as other:
        other.add("x", 5, V1)
        registry.answers = {
            "/schemas/ids/5": (302, {"Location": f"{other.url}/schemas/ids/5"}, b""),
            "/schemas/ids/6": (401, {}, b"{}"),
            "/schemas/ids/8": (500, {}, b"{}"),
        }
        for number in (5, 6, 8):
            with pytest.raises(StorageError) as failed:
                schemas.by_id(number)
            assert failed.value.retriable
            said.append(str(failed.value))
        assert other.asked == []
    assert "answered 302" in said[1]
    assert "answered 401: give its credentials" in said[2]
    assert "secret" not in "".join(said) + caplog.text
    assert "a2V5" not in "".join(said) + caplog.text


def test_credentials_in_the_address_are_taken_out_of_it(registry: Registry) -> None:
    """As other tools take them: percent-encoded."""
    address = registry.url.replace("//", "//key:p%40ss@")
    schemas = SchemaRegistry(address)
    schemas.by_id(70)
    assert registry.credentials == ["Basic a2V5OnBAc3M="]
    assert "key" not in repr(schemas)
    for wrong in ("ftp://key:secret@x/", "http://key:secret@", "http://key:secret@h:port/", 7):
        with pytest.raises(InvalidOption) as refused:
            SchemaRegistry(wrong)  # type: ignore[arg-type]
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "how"),
    [
        ("http://a..b/", {}),
        (f"http://{'a' * 64}/", {}),
        ("http://h/\u00e4", {}),
        ("http://h/", {"token": "\u20ac"}),
        ("http://h/", {"token": "a\nb"}),
        ("http://h/", {"token": 7}),
        ("http://h/", {"user_info": b"key:secret"}),
        ("http://h/", {"timeout_s": "5"}),
    ],
)
def test_what_no_request_could_have(url: str, how: dict[str, Any]) -> None:
    """It is refused at once, as other arguments."""
    with pytest.raises(InvalidOption):
        SchemaRegistry(url, **how)


def test_a_host_in_other_letters() -> None:
    """It is asked as the names of hosts have it: each letter of ASCII."""
    assert "//xn--bcher-kva.example" in repr(SchemaRegistry("http://b\u00fccher.example"))


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, b"<html>in a minute</html>", "no schema"),
        (200, b"", "no schema"),
        (200, b"[" * 1_000_000, "no schema"),
        (200, b'{"schema": 7}', "no schema"),
        (200, b'{"schema": "' + b"x" * (5 << 20) + b'"}', "more than"),
        (404, b"<html>no such page</html>", "answered 404, and not as a registry does"),
        (404, b'{"message": "no route"}', "answered 404, and not as a registry does"),
        (404, b"", "answered 404, and not as a registry does"),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("own", [False, True])
def test_what_stands_before_a_registry_says_nothing_of_values(
    registry: Registry, status: int, body: bytes, reason: str, own: bool
) -> None:
    """A proxy has pages of its own: it is an error, and what comes after it is read."""
    schemas = SchemaRegistry(own_api(registry) if own else registry.url)
    reader = ValueReader(schemas, "avro", subject="shop/orders-value")
    number = 70 + (MILLION if own else 0)
    path = "/apis/registry/v2/search/artifacts" if own else f"/schemas/ids/{number}"
    value = pa.array([b"\0" + number.to_bytes(4, "big") + b"\2"])
    registry.answers[path] = (status, {}, body)
    with pytest.raises(StorageError, match=reason) as failed:
        reader.decode(value)
    assert failed.value.retriable
    registry.answers.clear()
    assert reader.decode(value).columns.to_pylist() == [{"id": 1, "note": "-"}]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"schema": "' + b"x" * (2 << 20) + b'"}', "characters"),
        (b'{"schema": "{}", "schemaType": "XML"}', "avro, protobuf or json"),
    ],
)
def test_answers_that_are_none(registry: Registry, body: bytes, reason: str) -> None:
    """They are no schemas: values that carry such an id are dead letters."""
    registry.answers["/schemas/ids/9"] = (200, {}, body)
    schemas = SchemaRegistry(registry.url)
    with pytest.raises(InvalidSchema, match=reason):
        schemas.by_id(9)
    reader = ValueReader(schemas, "avro", subject="shop/orders-value")
    error = reader.decode(pa.array([b"\0\0\0\0\x09"])).errors[0].as_py()
    assert error.startswith("schema 9 is not readable")


def test_a_registry_that_is_not_there_is_no_dead_letter(registry: Registry) -> None:
    """Nothing is known about the values then: it is an error, and may be tried again."""
    schemas = SchemaRegistry(registry.url, timeout_s=0.2)
    reader = ValueReader(schemas, "avro", subject="shop/orders-value")
    registry.answers["/schemas/ids/9"] = (503, {}, b"")
    with pytest.raises(StorageError, match="answered 503"):
        reader.decode(pa.array([b"\0\0\0\0\x09"]))
    del registry.answers["/schemas/ids/9"]
    assert "unknown" in reader.decode(pa.array([b"\0\0\0\0\x09"])).errors[0].as_py()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        silent = SchemaRegistry(f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout_s=0.2)
        with pytest.raises(StorageError, match="timed out"):
            silent.by_id(1)
    with pytest.raises(StorageError, match="cannot be reached"):
        silent.by_id(1)
    with pytest.raises(UnknownSchema, match="no version latest of subject 'nobody'"):
        schemas.version("nobody")


def test_an_answer_that_is_cut_off_is_no_dead_letter(registry: Registry) -> None:
    """Nothing is known about the values then, either."""
    schemas = SchemaRegistry(registry.url)
    reader = ValueReader(schemas, "avro", subject="shop/orders-value")
    body = json.dumps({"schema": V1}).encode()
    registry.answers["/schemas/ids/9"] = (200, {"Content-Length": str(len(body) + 1)}, body)
    with pytest.raises(StorageError, match="cannot be reached"):
        reader.decode(pa.array([b"\0\0\0\0\x09\2"]))
    registry.answers["/schemas/ids/9"] = (200, {}, body)
    assert reader(b"\0\0\0\0\x09\2") == {"id": 1, "note": "-"}


def test_an_id_that_is_too_long_to_be_written(registry: Registry) -> None:
    """Values carry four bytes of it, or eight."""
    registry.add("wide", 1 << 32, V1)
    schemas = SchemaRegistry(registry.url)
    with pytest.raises(InvalidOption, match="4294967296 of a schema has more than 4 bytes"):
        ValueWriter(schemas, "avro", subject="wide")
    value = ValueWriter(schemas, "avro", subject="wide", id_bytes=8)({"id": 1})
    assert value == b"\0\0\0\0\1\0\0\0\0\2"


def own_api(registry: Registry) -> str:
    return f"{registry.url}/apis/registry/v2/groups/shop"


def test_global_ids_by_apicurios_own_api(registry: Registry) -> None:
    """The URL says it; a group other than the default one is in it."""
    schemas = SchemaRegistry(own_api(registry))
    reader = ValueReader(schemas, "avro", subject="shop/orders-value", id_bytes=8)
    old = ValueWriter(schemas, "avro", subject="shop/orders-value", version=1, id_bytes=8)
    value = old({"id": 1})
    assert value[:9] == b"\0" + (70 + MILLION).to_bytes(8, "big")
    for unpickled in (reader, pickle.loads(pickle.dumps(reader))):
        registry.asked.clear()
        values = [value, value, b"\0" + (70).to_bytes(8, "big")]
        found = unpickled.decode(pa.array(values))
        assert found.columns.column("note").to_pylist() == ["-", "-", None]
        assert "has no schema with the global id 70" in found.errors[2].as_py()
    assert registry.asked == ["/apis/registry/v2/search/artifacts"]  # the other one is known
    fresh = SchemaRegistry(own_api(registry)).by_id(70 + MILLION)
    assert (fresh.text, fresh.schema_type) == (V1, "AVRO")
    with pytest.raises(UnknownSchema, match="no version latest of artifact 'nobody' in group 'sh"):
        schemas.version("nobody")


def test_references_by_apicurios_own_api(registry: Registry) -> None:
    """Of the same group, by versions that are numbers: nothing else is guessed."""
    registry.add("item", 80, '{"type": "record", "name": "Item", "fields": []}')
    order = {"type": "record", "name": "P", "fields": [{"name": "i", "type": "Item"}]}
    reference = {"name": "Item", "groupId": "shop", "artifactId": "item", "version": "1"}
    registry.add("order", 81, json.dumps(order), references=[reference])
    schemas = SchemaRegistry(own_api(registry))
    assert ValueReader(schemas, "avro", subject="order").schema.names == ["i"]
    wrongs: list[dict[str, str | None]] = [{"groupId": None}, {"version": "one"}, {"version": None}]
    for number, wrong in enumerate(wrongs, start=82):
        registry.add("other", number, json.dumps(order), references=[{**reference, **wrong}])
        with pytest.raises(InvalidSchema, match="in the group of the registry's URL"):
            schemas.version("other")


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("search/artifacts", b"[" * 100_000, StorageError),
        ("search/artifacts", b'{"artifacts": [{"type": "XML"}]}', InvalidSchema),
        ("ids/globalIds/1000070", b"\xff", InvalidSchema),
        ("ids/globalIds/1000070", b"x" * (2 << 20), InvalidSchema),
        ("ids/globalIds/1000070", b"\n<html>in a minute</html>", StorageError),
        ("ids/globalIds/1000070", b"", StorageError),
        ("ids/globalIds/1000070/references", b'[{"name": 1}]', StorageError),
    ],
)
def test_answers_of_apicurio_that_are_none(
    registry: Registry, path: str, body: bytes, error: type[TxnlogError]
) -> None:
    """As with the other API."""
    registry.answers[f"/apis/registry/v2/{path}"] = (200, {}, body)
    with pytest.raises(error):
        SchemaRegistry(own_api(registry)).by_id(70 + MILLION)


def test_an_answer_that_never_ends() -> None:
    """Each byte comes in time, but the whole does not."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        ended = threading.Event()
        pool.submit(_drip, server, ended)
        schemas = SchemaRegistry(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.5)
        try:
            with pytest.raises(StorageError, match=r"timed out after 0\.5 s"):
                schemas.by_id(1)
        finally:
            ended.set()


def _drip(server: socket.socket, ended: threading.Event) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        while not ended.wait(0.05):
            connection.sendall(b" ")
