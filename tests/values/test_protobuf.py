"""Protobuf as columns: places of messages, field numbers, and what a descriptor may be."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import any_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from tests.values.protobuf_files import KINDS, ROW, Field, add, class_of, order, text_of
from txnlog.errors import InvalidOption, InvalidRecord, InvalidSchema
from txnlog.store import Store
from txnlog.values import (
    SchemaFolder,
    SchemaReference,
    ValueReader,
    ValueWriter,
    subject_columns,
)
from txnlog.values.protobuf import read_protobuf


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


def test_a_field_that_must_be_there(store: Store) -> None:
    """As proto2 has it: without it there is no value."""
    inner = "message B { required int32 x = 1; } optional B b = 2;"
    text = f'syntax = "proto2"; message A {{ required int64 id = 1; {inner} }}'
    store.schemas.add("a", text, "PROTOBUF")
    write = ValueWriter(store.schemas, "protobuf", subject="a")
    for value, missing in (({"b": {"x": 1}}, "id"), ({"id": 1, "b": {}}, "b.x")):
        with pytest.raises(InvalidRecord, match=f"A is missing required fields: {missing}"):
            write(value)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"a": 0, "b": "x"}, "M.b: of a oneof only one can be written, and a is there"),
        ({"b": "x", "i": {}}, "M.i: of a oneof"),
        ({"at": {"a": 1, "b": ""}}, "M.b: of a oneof"),
        ({"list": [{"x": 1}, None]}, "a I in a list or a map is null"),
        ({"map": {"k": None}}, "a I in a list or a map is null"),
        ({"times": [None]}, "Timestamp in a list or a map is null"),
        ({"texts": [None]}, "StringValue in a list or a map is null"),
        ({"numbers": [None]}, "NoneType"),
        ({"sizes": {"k": None}}, "NoneType"),
        ({"sizes": [("k", 1), ("k", 2)]}, "M.sizes: a key of the map is there twice"),
        ({"map": [("k", {}), ("k", {"x": 1})]}, "M.map: a key of the map is there twice"),
    ],
)
def test_rows_that_would_lose_a_part(store: Store, row: dict[str, Any], reason: str) -> None:
    """Values hold one member of a oneof, and no nulls: others are not left out in silence."""
    text = """
        syntax = "proto3";
        import "google/protobuf/timestamp.proto";
        import "google/protobuf/wrappers.proto";
        message T { M at = 1; }
        message I { int32 x = 1; }
        message M {
            oneof o { int32 a = 1; string b = 2; I i = 3; }
            oneof p { int32 c = 4; string d = 5; }
            repeated I list = 6; map<string, I> map = 7;
            repeated google.protobuf.Timestamp times = 8;
            repeated google.protobuf.StringValue texts = 9;
            repeated int32 numbers = 10; map<string, int32> sizes = 11;
            optional int32 maybe = 12; optional int32 other = 13;
        }
    """
    store.schemas.add("s", text, "PROTOBUF")
    message = "T" if "at" in row else "M"
    write = ValueWriter(store.schemas, "protobuf", subject="s", message=message)
    with pytest.raises(InvalidRecord, match=reason):
        write(row)
    if message == "M":
        one_of_each = {"a": 1, "d": "x", "maybe": 0, "other": 0}
        reader = ValueReader(store.schemas, "protobuf", subject="s", message="M")
        found = reader(write(one_of_each))
        assert {name: found[name] for name in one_of_each} == one_of_each
        assert (found["b"], found["i"], found["c"]) == (None, None, None)


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


@pytest.mark.parametrize(
    ("message", "row", "place"),
    [
        ("shop.Order", {"a_int32": 5}, b"\0"),
        ("shop.Other", {"x": "é"}, b"\2\2"),
        ("shop.Order.Item", {"n": 7}, b"\4\0\0"),
        ("shop.M62", {"x": 7}, b"\2\x80\1"),  # at 64, in two bytes
    ],
)
def test_any_message_of_a_file(
    store: Store, message: str, row: dict[str, Any], place: bytes
) -> None:
    """By its full name, also one within another; values of the others are dead letters."""
    file = order()
    for number in range(63):
        add(file.message_type.add(name=f"M{number}"), 1, "x", "int32")
    store.schemas.add("s", text_of(file), "PROTOBUF")
    value = ValueWriter(store.schemas, "protobuf", subject="s", message=message)(row)
    judge = class_of(file, message)
    assert value == b"\0\0\0\0\1" + place + judge(**row).SerializeToString()
    reader = pickle.loads(
        pickle.dumps(ValueReader(store.schemas, "protobuf", subject="s", message=message))
    )
    assert {name: reader(value)[name] for name in row} == row
    for other in {"shop.Order", "shop.Other", "shop.Order.Item"} - {message}:
        foreign = ValueWriter(store.schemas, "protobuf", subject="s", message=other)({})
        decoded = reader.decode(pa.array([value, foreign, value]))
        assert decoded.errors.to_pylist() == [
            None,
            f"schema 1: it is a {other}, not a {message}",
            None,
        ]
        assert decoded.columns.to_pylist()[1] == dict.fromkeys(reader.schema.names)
    columns = subject_columns(store.schemas, "s", message=message).columns
    assert columns.names == reader.schema.names


def test_a_message_is_found_wherever_a_version_has_it(store: Store) -> None:
    """By its name: places are those of the schema that a value was written under."""
    later = order()
    later.message_type.insert(0, DescriptorProto(name="First"))
    for file in (order(), later):
        store.schemas.add("s", text_of(file), "PROTOBUF")
    for name, row in (("shop.Other", {"x": "a"}), ("shop.Order.Item", {"n": 3})):
        reader = ValueReader(store.schemas, "protobuf", subject="s", message=name)
        for version in (1, 2):
            writer = ValueWriter(
                store.schemas, "protobuf", subject="s", version=version, message=name
            )
            assert reader(writer(row)) == row
    new = ValueReader(store.schemas, "protobuf", subject="s", message="shop.First")
    with pytest.raises(InvalidRecord, match=r"is a shop\.Order, not a shop\.First"):
        new(ValueWriter(store.schemas, "protobuf", subject="s", version=1)({}))


def test_a_message_without_fields(store: Store) -> None:
    """It has no columns, and still a row for each value."""
    file = FileDescriptorProto(name="p.proto", syntax="proto3")
    file.message_type.add(name="Ping")
    store.schemas.add("ping", text_of(file), "PROTOBUF")
    writer = ValueWriter(store.schemas, "protobuf", subject="ping")
    reader = ValueReader(store.schemas, "protobuf", subject="ping")
    assert writer({}) == b"\0\0\0\0\1\0"
    assert reader(writer({})) == {}
    assert reader.decode(pa.array([writer({}), b"", None])).columns.num_rows == 3


def test_messages_that_are_not_there(store: Store) -> None:
    """What there is instead is said; other kinds of schemas have none."""
    store.schemas.add("s", text_of(order()), "PROTOBUF")
    store.schemas.add("json", '{"type": "object"}', "JSON")
    known = r"no message 'Order'; it has shop\.Order, shop\.Other, shop\.Order\.Item$"
    for message in ("Order", "shop.Order.SizesEntry"):
        with pytest.raises(InvalidOption, match=known.replace("Order", message, 1)):
            ValueReader(store.schemas, "protobuf", subject="s", message=message)
    with pytest.raises(InvalidOption, match=r"is for Protobuf; the schema is JSON"):
        ValueWriter(store.schemas, "json", subject="json", message="shop.Order")


def test_places_by_name(store: Store) -> None:
    """As Apicurio's serializers write them, behind ids of any length."""
    file = order()
    name = "N" * 150
    add(file.message_type.add(name=name), 1, "x", "string")
    store.schemas.add("s", text_of(file), "PROTOBUF")
    body = class_of(file, "shop.Other")(x="é").SerializeToString()
    place = b"\7\x0a\5Other"
    for id_bytes in (4, 8):
        wide: dict[str, Any] = {"subject": "s", "id_bytes": id_bytes}
        reader = ValueReader(store.schemas, "protobuf", **wide, message="shop.Other")
        head = b"\0" + (1).to_bytes(id_bytes, "big")
        assert reader(head + place + body) == {"x": "é"}
        with pytest.raises(InvalidRecord, match=r"is a shop\.Order, not a shop\.Other"):
            reader(head + b"\7\x0a\5Order")
        for wrong in (b"\7\x0a\5Unknown", b"\7\x0a\5Oth", b"\x99", b"\7\x0a"):
            with pytest.raises(InvalidRecord, match="place of"):
                reader(head + wrong)
    writer = ValueWriter(store.schemas, "protobuf", subject="s", id_bytes=8, message="shop.Other")
    assert writer({"x": "é"}) == head + place + body
    long: dict[str, Any] = {"subject": "s", "id_bytes": 8, "message": f"shop.{name}"}
    value = ValueWriter(store.schemas, "protobuf", **long)({"x": "a"})
    assert ValueReader(store.schemas, "protobuf", **long)(value) == {"x": "a"}
    with pytest.raises(InvalidOption, match=r"shop\.Order\.Item is within another message"):
        ValueWriter(store.schemas, "protobuf", subject="s", id_bytes=8, message="shop.Order.Item")


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


@pytest.mark.parametrize("is_first", [True, False])
def test_a_reference_is_meant_before_what_is_in_anothers_set(*, is_first: bool) -> None:
    """Of the file that both bring, it is the one that has the name."""
    files = [FileDescriptorProto(name=f"{name}.proto", syntax="proto3") for name in "ccbt"]
    old, new, between, top = files
    for file in files:
        message = file.message_type.add(name=file.name[0].upper())
        add(message, 1, "x", "int32" if file in (old, new) else ".C")
    add(new.message_type[0], 2, "y", "int32")
    add(top.message_type[0], 2, "b", ".B")
    between.dependency.append("c.proto")
    top.dependency.extend(["c.proto", "b.proto"])
    references = [("c.proto", text_of(new)), ("b.proto", text_of(old, between))]
    found = read_protobuf(text_of(top), references if is_first else references[::-1]).columns
    assert found.field("x").type.names == ["x", "y"]
    assert found.field("b").type.field("x").type == found.field("x").type


@pytest.mark.parametrize("count", [1, 2])
def test_sets_of_any_size(count: int) -> None:
    """The first bytes of some are a descriptor whose name is not valid UTF-8."""
    for fields in range(1, 40):
        files = [FileDescriptorProto(name=f"f{n}.proto", syntax="proto3") for n in range(count)]
        for file in files:
            message = file.message_type.add(name=f"M{file.name[1]}")
            for number in range(1, fields + 1):
                add(message, number, f"some_field_{number}", "int64")
        data = FileDescriptorSet(file=files).SerializeToString()
        found = read_protobuf(base64.b64encode(data).decode())
        assert len(found.columns) == fields


@pytest.mark.parametrize("is_set", [True, False])
def test_own_files_of_protobuf_that_others_import(store: Store, *, is_set: bool) -> None:
    """As ``protoc --include_imports`` writes them: type.proto imports any.proto, too."""
    file = FileDescriptorProto(name="note.proto", syntax="proto3")
    file.dependency.append("google/protobuf/any.proto")
    add(file.message_type.add(name="Note"), 1, "about", ".google.protobuf.Any")
    own = FileDescriptorProto.FromString(any_pb2.DESCRIPTOR.serialized_pb)
    text = text_of(own, file) if is_set else text_of(file)
    store.schemas.add("note", text, "PROTOBUF")
    store.schemas.add("text", 'import "google/protobuf/any.proto"; message N {}', "PROTOBUF")
    reader = ValueReader(store.schemas, "protobuf", subject="note")
    row = {"about": {"type_url": "a/b", "value": b"c"}}
    assert reader(ValueWriter(store.schemas, "protobuf", subject="note")(row)) == row


def test_fields_that_are_called_as_methods(store: Store) -> None:
    """Those that are used here among them, with presence and without."""
    text = """
        syntax = "proto3";
        message M {
            optional int32 HasField = 1; int32 SetInParent = 2; N SerializeToString = 3;
            repeated int32 FromString = 4; map<string, int32> ListFields = 5;
        }
        message N { int32 SetInParent = 1; optional string Clear = 2; O HasField = 3; }
        message O { optional int32 Clear = 1; }
    """
    store.schemas.add("m", text, "PROTOBUF")
    reader = ValueReader(store.schemas, "protobuf", subject="m")
    writer = ValueWriter(store.schemas, "protobuf", subject="m")
    row = {
        "HasField": 0,
        "SetInParent": 2,
        "SerializeToString": {"SetInParent": 4, "Clear": "c", "HasField": {"Clear": None}},
        "FromString": [1, 2],
        "ListFields": [("a", 1)],
    }
    assert reader(writer(row)) == row
    nothing = reader(writer({}))
    assert (nothing["HasField"], nothing["SerializeToString"]) == (None, None)


@pytest.mark.parametrize("name", ["Timestamp", "StringValue"])
def test_messages_that_are_called_as_protobufs_own(store: Store, name: str) -> None:
    """Their fields are others, so they are no times and no texts."""
    file = FileDescriptorProto(name="t.proto", package="google.protobuf", syntax="proto3")
    add(file.message_type.add(name="M"), 1, "m", f".google.protobuf.{name}")
    add(file.message_type.add(name=name), 1, "value", "int64")
    store.schemas.add("s", text_of(file), "PROTOBUF")
    with pytest.raises(InvalidSchema, match=f"google.protobuf.{name} .* not Protobuf's own"):
        ValueReader(store.schemas, "protobuf", subject="s")


@pytest.mark.parametrize("body", [b"\x0a\1\xff", b"\x12\1\xff", b"\x1a\3\x0a\1\xff"])
def test_a_text_that_is_not_utf8_is_a_dead_letter(store: Store, body: bytes) -> None:
    """The parser lets it pass in syntax proto2: alone, in a list, as the key of a map."""
    text = "message M { optional string s = 1; repeated string r = 2; map<string, string> m = 3; }"
    store.schemas.add("s", f'syntax = "proto2"; {text}', "PROTOBUF")
    reader = ValueReader(store.schemas, "protobuf", subject="s")
    found = reader.decode(pa.array([b"\0\0\0\0\1\0\x0a\1a", b"\0\0\0\0\1\0" + body]))
    assert found.columns.to_pylist()[0]["s"] == "a"
    assert found.errors.to_pylist() == [None, "schema 1: a text is not valid UTF-8"]


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
        ("CgH/", "not a descriptor"),
        (base64.b64encode(b"\x0a\xff\xff\xff\xff").decode(), "not a descriptor"),
        (text_of(FileDescriptorProto(name="e.proto")), "has no message"),
    ],
)
def test_descriptors_that_are_refused(store: Store, text: str, reason: str) -> None:
    """None of them is registered."""
    with pytest.raises(InvalidSchema, match=reason):
        store.schemas.add("s", text, "PROTOBUF")


def chained() -> FileDescriptorProto:
    """Each message has the next one, further than Python can follow."""
    file = FileDescriptorProto(name="c.proto", syntax="proto3")
    for level in range(2000):
        add(file.message_type.add(name=f"C{level}"), 1, "next", f".C{level + 1}")
    file.message_type.add(name="C2000")
    return file


def map_of(*names: str, repeated: bool) -> FileDescriptorProto:
    """A field whose message says that it is a map's entry."""
    file = FileDescriptorProto(name="m.proto", syntax="proto3")
    message = file.message_type.add(name="M")
    entry = message.nested_type.add(name="FEntry")
    entry.options.map_entry = True
    for number, name in enumerate(names, 1):
        add(entry, number, name, "int32")
    add(message, 1, "f", ".M.FEntry")
    label = FieldDescriptorProto.LABEL_REPEATED
    message.field[0].label = label if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    return file


@pytest.mark.parametrize(
    ("file", "reason"), [(recursive(), "contains itself"), (doubling(), "4096")]
)
def test_a_message_without_columns(store: Store, file: FileDescriptorProto, reason: str) -> None:
    """It is refused before any value is looked at; others of its file can be read."""
    add(file.message_type.add(name="Plain"), 1, "x", "int32")
    store.schemas.add("s", text_of(file), "PROTOBUF")
    for refused in (ValueReader, ValueWriter):
        with pytest.raises(InvalidSchema, match=reason):
            refused(store.schemas, "protobuf", subject="s")
    with pytest.raises(InvalidSchema, match=reason):
        subject_columns(store.schemas, "s")
    writer = ValueWriter(store.schemas, "protobuf", subject="s", message="Plain")
    reader = ValueReader(store.schemas, "protobuf", subject="s", message="Plain")
    assert reader(writer({"x": 5})) == {"x": 5}


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (chained(), "4096 fields, or"),
        (map_of("a", "b", repeated=True), "a map's entries|not a descriptor"),
        (map_of("key", "value", repeated=False), "a map's entries|not a descriptor"),
    ],
    ids=["chain", "no key", "one"],
)
def test_descriptors_that_protobuf_itself_takes(file: FileDescriptorProto, reason: str) -> None:
    """Whoever looks for columns is told, with an error of our own."""
    with pytest.raises(InvalidSchema, match=reason):
        assert read_protobuf(text_of(file)).columns


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
    del changed.message_type[0].field[10:12]  # items and item
    del changed.message_type[0].nested_type[0]
    reasons = " ".join(store.schemas.check("order", text_of(changed), "PROTOBUF"))
    assert "a_int32: field 1 was a varint, and is bytes" in reasons
    assert "a_string: it is repeated in one of them" in reasons
    assert "message shop.Other is gone" in reasons
    assert "message shop.Order.Item is gone" in reasons
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
