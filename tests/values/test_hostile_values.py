"""Bytes of others: each value becomes a row or a dead letter, within limits of memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import some
from tests.values.protobuf_files import ROW, add, class_of, order, text_of
from tests.values.registry_server import Registry, serving
from txnlog.errors import InvalidRecord, TxnlogError
from txnlog.store import Store
from txnlog.values import SchemaRegistry, ValueReader, ValueWriter
from txnlog.values.avro_columns import Problems
from txnlog.values.codecs import parse_schema
from txnlog.values.proto_wire import spend_fields
from txnlog.values.rows import MOST_FIELDS

AVRO = {
    "type": "record",
    "name": "O",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "sizes", "type": {"type": "map", "values": "double"}},
    ],
}
JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "items": {"type": "array", "items": {"type": "object", "properties": {"n": {}}}},
    },
}
SCHEMAS = {"avro": json.dumps(AVRO), "protobuf": text_of(order()), "json": json.dumps(JSON)}
ROWS: dict[str, dict[str, Any]] = {
    "avro": {"id": 7, "tags": ["a", None], "sizes": [("s", 0.5)]},
    "protobuf": ROW,
    "json": {"id": 7, "items": [{"n": "[1]"}, {"n": None}]},
}


@pytest.mark.parametrize("kind", [*SCHEMAS])
def test_each_is_a_row_or_a_dead_letter(store: Store, kind: str) -> None:
    """Damaged and random ones, beside sound ones that stay as they are."""
    store.schemas.add("s", SCHEMAS[kind], kind)
    reader = ValueReader(store.schemas, kind, subject="s")
    value = ValueWriter(store.schemas, kind, subject="s")(ROWS[kind])
    sound = reader(value)

    @some(400)
    @given(
        st.integers(0, len(value) - 1),
        st.binary(min_size=1, max_size=4),
        st.integers(0, len(value)),
        st.binary(max_size=40),
    )
    def check(at: int, patch: bytes, end: int, noise: bytes) -> None:
        changed = value[:at] + patch + value[at + len(patch) :]
        values = [value, changed, None, value[:end], noise, value[:6] + noise, value]
        batch = pa.record_batch({"value": pa.array(values, pa.binary())})
        (found,) = reader.read([batch])
        rows = found.select(reader.schema.names).to_pylist()
        assert rows[0] == rows[6] == sound
        for row, given_bytes in enumerate(values):
            reason, left = found["_error"][row].as_py(), found["_value"][row].as_py()
            assert left == (None if reason is None else given_bytes)
            assert " at 0x" not in (reason or "")  # the same reason whenever it is read
            if reason is not None or given_bytes is None:
                assert set(rows[row].values()) <= {None}
        found.validate(full=True)

    check()


def wide(count: int) -> FileDescriptorProto:
    """``M``, whose items have so many fields; ``M.I`` is one of them."""
    file = FileDescriptorProto(name="m.proto", syntax="proto3")
    message = file.message_type.add(name="M")
    inner = message.nested_type.add(name="I")
    for number in range(1, count + 1):
        add(inner, number, f"f{number}", "int64")
    add(inner, count + 1, "more", ".M.I2", repeated=True)
    add(message.nested_type.add(name="I2"), 1, "x", "string")
    add(message, 1, "items", ".M.I", repeated=True)
    return file


def wide_json(count: int) -> str:
    item = {"type": "object", "properties": {f"f{n}": {"type": "integer"} for n in range(count)}}
    whole = {"type": "object", "properties": {"items": {"type": "array", "items": item}}}
    return json.dumps(whole)


def items_of(kind: str, count: int) -> bytes:
    """A value of so many items without fields."""
    if kind == "protobuf":
        return b"\0\0\0\0\1\0" + b"\x0a\0" * count
    return b'\0\0\0\0\1{"items":[' + b",".join([b"{}"] * count) + b"]}"


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["protobuf", "json"])
def test_few_bytes_are_not_many_fields(store: Store, kind: str) -> None:
    """An item of no bytes has all the fields of its schema: a thousand million of them are none."""
    text = text_of(wide(3000)) if kind == "protobuf" else wide_json(3000)
    store.schemas.add("s", text, kind)
    reader = ValueReader(store.schemas, kind, subject="s")
    hostile, large = items_of(kind, 400_000), items_of(kind, 20)
    decoded = reader.decode(pa.array([large, hostile, large]))
    assert [reason is None for reason in decoded.errors.to_pylist()] == [True, False, True]
    assert f"has more than {MOST_FIELDS + len(hostile) - 5} fields" in decoded.errors[1].as_py()
    assert pa.compute.list_value_length(decoded.columns.column("items")).to_pylist() == [
        20,
        None,
        20,
    ]


@pytest.mark.parametrize("kind", ["protobuf", "json"])
def test_what_fits_alone_is_read_in_pieces(
    store: Store, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many large values of one batch are several; who wants one gets an error of ours."""
    monkeypatch.setattr("txnlog.values.rows.MOST_FIELDS_TOGETHER", 10_000)
    text = text_of(wide(30)) if kind == "protobuf" else wide_json(30)
    store.schemas.add("s", text, kind)
    reader = ValueReader(store.schemas, kind, subject="s")
    offsets = [*range(30)]
    values = [items_of(kind, 300)] * 29 + [b"none"]
    batch = pa.record_batch({"value": pa.array(values), "offset": pa.array(offsets)})
    with pytest.raises(InvalidRecord, match="decode fewer at a time"):
        reader.decode(batch["value"])
    found = [*reader.read([batch])]
    assert len(found) > 1
    table = pa.Table.from_batches(found)
    assert table["_offset"].to_pylist() == offsets
    assert table["_error"].null_count == 29


@some(300)
@given(st.binary(max_size=60))
def test_fields_are_counted_as_the_parser_makes_them(noise: bytes) -> None:
    """Of messages in each other; what the parser refuses is passed over without an error."""
    counted: list[int] = []
    spend_fields(noise, WIDE.DESCRIPTOR, counted.append)
    try:
        message = WIDE.FromString(noise)
    except DecodeError:
        return
    items = sum(1 + len(item.more) for item in message.items)
    assert len(counted) == 1 + items


WIDE = class_of(wide(1), "M")


@some(100)
@given(
    st.lists(st.lists(st.text(max_size=3), max_size=5), max_size=5),
)
def test_fields_of_sound_messages_are_counted(items: list[list[str]]) -> None:
    """One for each message, whatever it is in."""
    message = WIDE(items=[{"f1": -1, "more": [{"x": x} for x in more]} for more in items])
    counted: list[int] = []
    spend_fields(message.SerializeToString(), WIDE.DESCRIPTOR, counted.append)
    assert sum(counted) == 1 + sum(2 + len(more) for more in items)


ANSWERS = (
    '{"schema": "\\"int\\"", "id": 9, "version": 1}',
    '{"schema": "syntax", "schemaType": "PROTOBUF", "id": 9}',
    '{"schema": "{}", "schemaType": "JSON", "references": [{"name": "x", "subject": "s"}]}',
    '[{"name": "n", "artifactId": "s", "version": "1"}]',
    '{"artifacts": [{"type": "AVRO"}], "count": 1, "globalId": 9, "type": "AVRO", "version": "1"}',
)


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serving() as found:
        yield found


@pytest.mark.parametrize("path", ["", "/apis/registry/v2"])
def test_answers_of_a_registry(registry: Registry, path: str) -> None:
    """Whatever it says, an error is of ours; an id that it does not know is a dead letter."""

    @some(150)
    @given(st.sampled_from(ANSWERS), st.integers(0, 90), st.binary(max_size=4))
    def check(answer: str, at: int, patch: bytes) -> None:
        body = answer.encode()
        registry.everything = body[:at] + patch + body[at + len(patch) :]
        schemas = SchemaRegistry(f"{registry.url}{path}")
        version = 1 if at % 2 else None
        for ask in (partial(schemas.by_id, 9), partial(schemas.version, "s", version)):
            with suppress(TxnlogError):
                ValueReader(schemas, ask().schema_type, subject="s")

    check()


@pytest.mark.parametrize("kind", ["protobuf", "json"])
def test_reasons_are_cut_when_they_are_made(kind: str) -> None:
    """Many long ones would fill memory before they are shown."""
    name = "N" * 1000
    if kind == "protobuf":
        file = wide(1)
        add(file.message_type.add(name=name), 1, "x", "string")
        codec, value = parse_schema("PROTOBUF", text_of(file)), b"\2\2"
    else:
        schema = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
        codec, value = parse_schema("JSON", json.dumps(schema)), b"{}"
    problems = Problems()
    data = np.frombuffer(value, np.uint8)
    codec.decode(data, np.array([0]), np.array([len(value)]), problems, codec)
    assert "NNN" in problems.reasons[0]
    assert len(problems.reasons[0]) == 300
