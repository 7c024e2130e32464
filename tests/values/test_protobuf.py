"""Protobuf as columns: places of messages, field numbers, and what a descriptor may be."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tests.values.protobuf_files import KINDS, ROW, Field, add, order, text_of
from txnlog.errors import InvalidRecord, InvalidSchema
from txnlog.store import Store
from txnlog.values import SchemaFolder, SchemaReference, ValueReader, ValueWriter


def class_of(file: FileDescriptorProto, name: str) -> Any:
    """The judge: Protobuf's own message of a file."""
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name))


def test_messages_are_rows_and_rows_are_messages(store: Store) -> None:
    """A field of each kind; what is not there is its default, or null if that can be told."""
    store.schemas.add("order", text_of(order()), "PROTOBUF")
    writer = ValueWriter(store.schemas, "protobuf", subject="order")
    reader = ValueReader(store.schemas, "protobuf", subject="order")
    value = writer(ROW)
    assert value[:6] == b"\0\0\0\0\1\0"  # the first message is a single 0
    message = class_of(order(), "shop.Order").FromString(value[6:])
    assert (message.a_string, message.sizes["s"], message.at.nanos) == ("é", 7, 5000)
    assert reader(value) == ROW
    empty = reader(b"\0\0\0\0\1\0")
    assert (empty["a_int32"], empty["a_string"], empty["tags"], empty["sizes"]) == (0, "", [], [])
    assert (empty["item"], empty["at"], empty["maybe"], empty["colour"]) == (
        None,
        None,
        None,
        "RED",
    )
    assert reader.schema.field("a_uint64").type == pa.decimal128(20, 0)
    message.colour = 9  # a number that the schema does not name
    assert reader(value[:6] + message.SerializeToString())["colour"] == "9"


def test_a_field_that_came_later(store: Store) -> None:
    """By numbers: what a schema does not name is passed over, or its default."""
    for more in (False, True):
        store.schemas.add("order", text_of(order(more=more)), "PROTOBUF")
    old = ValueWriter(store.schemas, "protobuf", subject="order", version=1)
    new = ValueWriter(store.schemas, "protobuf", subject="order")
    assert ValueReader(store.schemas, "protobuf", subject="order")(old(ROW))["later"] == ""
    first = ValueReader(store.schemas, "protobuf", subject="order", version=1)
    assert first(new({**ROW, "later": "x"})) == ROW


def test_places_of_messages_and_what_is_none(store: Store) -> None:
    """Also written in full; another message than the reader's, and bytes of none, are errors."""
    store.schemas.add("order", text_of(order()), "PROTOBUF")
    reader = ValueReader(store.schemas, "protobuf", subject="order")
    head = b"\0\0\0\0\1"
    assert reader(head + b"\2\0")["a_int32"] == 0  # [0], written as a list
    for rest, reason in (
        (b"\2\2", "it is a shop.Other, not a shop.Order"),
        (b"\4\0\0", "it is a shop.Order.Item"),
        (b"\2\x10", r"no message at \[8\]"),
        (b"\2\1", r"no message at \[-1\]"),
        (b"\xfe\xff\xff\xff\x0f", "place of a message"),
        (b"\xff\xff\xff\xff\xff\x0f", "place of a message"),
        (b"\2", "ends within"),
        (b"", "ends within"),
        (b"\0\xff", "Error parsing"),
        (b"\0\x3a\5a", "Error parsing"),
    ):
        with pytest.raises(InvalidRecord, match=reason):
            reader(head + rest)


def test_imports_are_in_a_set_or_references(store: Store, tmp_path: Path) -> None:
    """As protoc writes them, and as registries have them."""
    file = FileDescriptorProto(name="basket.proto", package="shop", syntax="proto3")
    file.dependency.append("order.proto")
    add(file.message_type.add(name="Basket"), 1, "orders", ".shop.Order", repeated=True)
    store.schemas.add("set", text_of(order(), file), "PROTOBUF")
    assert ValueReader(store.schemas, "protobuf", subject="set").schema.names == ["orders"]
    renamed = order()
    renamed.name = "elsewhere.proto"
    store.schemas.add("order", text_of(renamed), "PROTOBUF")
    reference = SchemaReference("order.proto", "order", 1)
    store.schemas.add("one", text_of(file), "PROTOBUF", [reference])
    reader = ValueReader(store.schemas, "protobuf", subject="one")
    assert reader(ValueWriter(store.schemas, "protobuf", subject="one")({"orders": [ROW]})) == {
        "orders": [ROW]
    }
    (tmp_path / "s-4.desc").write_bytes(FileDescriptorSet(file=[order(), file]).SerializeToString())
    found = ValueReader(SchemaFolder(tmp_path), "protobuf", subject="s")
    assert found.registered.id == 4
    with pytest.raises(InvalidSchema, match=r"order\.proto"):
        store.schemas.add("missing", text_of(file), "PROTOBUF")


def recursive() -> FileDescriptorProto:
    file = FileDescriptorProto(name="r.proto", syntax="proto3")
    add(file.message_type.add(name="R"), 1, "r", ".R")
    return file


def doubling() -> FileDescriptorProto:
    """Each message has the last one twice."""
    file = FileDescriptorProto(name="d.proto", syntax="proto3")
    for level in range(14, -1, -1):
        message = file.message_type.add(name=f"T{level}")
        for number in (1, 2):
            add(message, number, f"f{number}", f".T{level - 1}" if level else "int32")
    return file


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("AAAA", "not a descriptor"),
        ("", "no file"),
        (base64.b64encode(b"\x0a\xff\xff\xff\xff").decode(), "not a descriptor"),
        (text_of(FileDescriptorProto(name="e.proto")), "has no message"),
        (text_of(recursive()), "contains itself"),
        (text_of(doubling()), "4096"),
    ],
)
def test_descriptors_that_are_refused(store: Store, text: str, reason: str) -> None:
    """Before any value is looked at."""
    with pytest.raises(InvalidSchema, match=reason):
        store.schemas.add("s", text, "PROTOBUF")


def test_compatibility_by_numbers(store: Store) -> None:
    """Another kind of bytes under the same number, one that is many, a message that is gone."""
    store.schemas.set_compatibility("FULL")
    store.schemas.add("order", text_of(order()), "PROTOBUF")
    assert store.schemas.check("order", text_of(order(more=True)), "PROTOBUF") == []
    changed = order()
    changed.message_type[0].field[0].type = KINDS["string"]
    changed.message_type[0].field[1].type = KINDS["uint64"]  # a varint, too
    changed.message_type[0].field[6].label = Field.LABEL_REPEATED
    del changed.message_type[1]
    reasons = " ".join(store.schemas.check("order", text_of(changed), "PROTOBUF"))
    assert "a_int32: field 1 was a varint, and is bytes" in reasons
    assert "a_string: it is repeated in one of them" in reasons
    assert "message shop.Other is gone" in reasons
    assert "a_int64" not in reasons
    assert store.schemas.check("order", '{"type": "object"}', "JSON") == [
        "version 1 is a schema of another kind"
    ]


def test_messages_are_compared_once(store: Store) -> None:
    """Behind the first one, each may have the last one twice: that is no doubling of the work."""
    files = []
    for kind in ("int32", "string"):
        file = doubling()
        for level in range(15, 60):
            message = file.message_type.add(name=f"T{level}")
            for number in (1, 2):
                add(message, number, f"f{number}", f".T{level - 1}")
        file.message_type[14].field[0].type = KINDS[kind]
        file.message_type.insert(0, DescriptorProto(name="First"))
        files.append(text_of(file))
    store.schemas.add("s", files[0], "PROTOBUF")
    assert store.schemas.check("s", files[1], "PROTOBUF") == [
        "it cannot read what version 1 wrote: T0.f1: field 1 was a varint, and is bytes"
    ]
