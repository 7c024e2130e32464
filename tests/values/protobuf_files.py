"""Descriptors that tests of Protobuf's values share, and a row of one."""

from __future__ import annotations

import base64
import datetime as dt
from decimal import Decimal
from typing import Any

from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

Field = FieldDescriptorProto
KINDS = {
    **{name.lower(): getattr(Field, f"TYPE_{name}") for name in ("INT32", "INT64", "UINT32")},
    **{name.lower(): getattr(Field, f"TYPE_{name}") for name in ("UINT64", "SINT64", "BOOL")},
    **{name.lower(): getattr(Field, f"TYPE_{name}") for name in ("STRING", "BYTES", "DOUBLE")},
}


def add(message: DescriptorProto, number: int, name: str, kind: str, **more: Any) -> None:
    """A field; a kind that begins with a dot is a message."""
    label = Field.LABEL_REPEATED if more.pop("repeated", False) else Field.LABEL_OPTIONAL
    found = (
        {"type": Field.TYPE_MESSAGE, "type_name": kind} if kind[0] == "." else {"type": KINDS[kind]}
    )
    message.field.add(name=name, number=number, label=label, **found, **more)


def order(*, more: bool = False) -> FileDescriptorProto:
    """``shop.Order`` with a field of each kind, and ``shop.Other``."""
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.enum_type.add(name="Colour").value.add(name="RED", number=0)
    file.enum_type[0].value.add(name="BLUE", number=1)
    message = file.message_type.add(name="Order")
    for number, kind in enumerate(KINDS, 1):
        add(message, number, f"a_{kind}", kind)
    add(message, 20, "tags", "string", repeated=True)
    inner = message.nested_type.add(name="Item")
    add(inner, 1, "n", "int32")
    add(message, 21, "items", ".shop.Order.Item", repeated=True)
    add(message, 22, "item", ".shop.Order.Item")
    add(message, 23, "at", ".google.protobuf.Timestamp")
    pair = message.nested_type.add(name="SizesEntry")
    pair.options.map_entry = True
    add(pair, 1, "key", "string")
    add(pair, 2, "value", "int64")
    add(message, 24, "sizes", ".shop.Order.SizesEntry", repeated=True)
    message.field.add(
        name="colour", number=25, label=1, type=Field.TYPE_ENUM, type_name=".shop.Colour"
    )
    message.oneof_decl.add(name="_maybe")
    add(message, 26, "maybe", "int32", oneof_index=0, proto3_optional=True)
    if more:
        add(message, 30, "later", "string")
    add(file.message_type.add(name="Other"), 1, "x", "string")
    return file


def text_of(*files: FileDescriptorProto) -> str:
    """As ``protoc`` writes a set, or a registry one file."""
    whole = files[0] if len(files) == 1 else FileDescriptorSet(file=files)
    return base64.b64encode(whole.SerializeToString()).decode()


def class_of(file: FileDescriptorProto, name: str) -> Any:
    """The judge: Protobuf's own message of a file."""
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name))


ROW = {
    "a_int32": -5,
    "a_int64": 1 << 40,
    "a_uint32": (1 << 32) - 1,
    "a_uint64": Decimal((1 << 64) - 1),
    "a_sint64": -(1 << 40),
    "a_bool": True,
    "a_string": "é",
    "a_bytes": b"\xff\0",
    "a_double": 0.5,
    "tags": ["a", "b"],
    "items": [{"n": 1}, {"n": 2}],
    "item": {"n": 3},
    "at": dt.datetime(2024, 5, 1, 12, 0, 0, 5, tzinfo=dt.UTC),
    "sizes": [("s", 7)],
    "colour": "BLUE",
    "maybe": 0,
}
