"""Confluent's own client beside a registry: it registers schemas, writes values, and reads them.

``write URL`` prints values in hexadecimal by the name of their topic; ``read URL`` takes such
values of stdin and prints what they are. It runs with packages of its own, and none of ours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import timestamp_pb2  # noqa: F401 - what is imported is there then
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

AVRO: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
]
NOTE: dict[str, Any] = {"name": "note", "type": ["null", "string"], "default": None}
JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
}
ITEM = 'syntax = "proto3"; package text; message Item { string name = 1; }'
ORDER = """syntax = "proto3";
package text;
import "shop/item.proto";
import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; Item item = 2; google.protobuf.Timestamp at = 3; }
"""


def avro(fields: list[dict[str, Any]]) -> str:
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})


def message_classes() -> tuple[Any, Any]:
    """``made.Order``, which imports another file, and ``made.Late``, the second of its file."""
    item = FileDescriptorProto(name="made/item.proto", package="made", syntax="proto3")
    item.message_type.add(name="Item").field.add(
        name="name", number=1, type=Field.TYPE_STRING, label=1
    )
    order = FileDescriptorProto(name="made/order.proto", package="made", syntax="proto3")
    order.dependency.append("made/item.proto")
    message = order.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=Field.TYPE_INT64, label=1)
    message.field.add(name="item", number=2, type=11, type_name=".made.Item", label=1)
    order.message_type.add(name="Late").field.add(
        name="x", number=1, type=Field.TYPE_INT32, label=1
    )
    pool = Default()
    for file in (item, order):
        pool.AddSerializedFile(file.SerializeToString())
    names = ("made.Order", "made.Late")
    order_class, late_class = (GetMessageClass(pool.FindMessageTypeByName(n)) for n in names)
    return order_class, late_class


def write(client: Any) -> dict[str, list[str]]:
    """Values by their topics."""
    made: dict[str, list[str]] = {}

    def add(topic: str, serialize: Callable[..., bytes], *values: Any) -> None:
        context = SerializationContext(topic, MessageField.VALUE)
        made.setdefault(topic, []).extend(serialize(one, context).hex() for one in values)

    add("avro", AvroSerializer(client, avro(AVRO)), {"id": 1, "at": 1_000})
    add("avro", AvroSerializer(client, avro([*AVRO, NOTE])), {"id": 2, "at": 0, "note": "é"})
    add("json", JSONSerializer(json.dumps(JSON), client), {"id": 1, "note": "é"}, {"id": 2})
    order, late = message_classes()
    settings = {"use.deprecated.format": False}
    protobuf = ProtobufSerializer(order, client, settings)
    add("protobuf", protobuf, order(id=1, item={"name": "é"}), order(id=2))
    add("protobuf", ProtobufSerializer(late, client, settings), late(x=1))
    client.register_schema("item", Schema(ITEM, "PROTOBUF"))
    references = [SchemaReference("shop/item.proto", "item", 1)]
    client.register_schema("text-value", Schema(ORDER, "PROTOBUF", references))
    return made


def read(client: Any, values: dict[str, list[str]]) -> dict[str, list[Any]]:
    """What values are, by their topics."""
    order, _ = message_classes()
    protobuf = ProtobufDeserializer(order, {"use.deprecated.format": False}, client)
    ways: dict[str, Callable[..., Any]] = {
        "avro": AvroDeserializer(client),
        "json": JSONDeserializer(json.dumps(JSON), schema_registry_client=client),
        "protobuf": lambda value, at: MessageToDict(protobuf(value, at)),
    }
    return {
        topic: [
            ways[topic](bytes.fromhex(value), SerializationContext(topic, MessageField.VALUE))
            for value in several
        ]
        for topic, several in values.items()
    }


if __name__ == "__main__":
    registry = SchemaRegistryClient({"url": sys.argv[2]})
    found = write(registry) if sys.argv[1] == "write" else read(registry, json.load(sys.stdin))
    sys.stdout.write(json.dumps(found, default=str))
