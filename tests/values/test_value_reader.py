"""Values of a topic as columns: frames, ids, dead letters, and back."""

from __future__ import annotations

import base64
import json
import pickle
import re
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

import txnlog
from txnlog.errors import (
    InvalidOption,
    InvalidRecord,
    InvalidSchema,
    StorageError,
    UnknownSchema,
)
from txnlog.snapshot import Snapshot, take_snapshot
from txnlog.store import Store
from txnlog.values import (
    RegisteredSchema,
    SchemaFolder,
    SchemaReference,
    Schemas,
    ValueReader,
    ValueWriter,
)
from txnlog.values.codecs import Codec, parse_schema

V1 = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "note", "type": "string", "default": "-"}]}
SUBJECT = "orders-value"


class Counted:
    """Schemas of a store; which ids were asked for."""

    def __init__(self, store: Store) -> None:
        self.asked: list[int] = []
        self._schemas = store.schemas

    def by_id(self, schema_id: int) -> RegisteredSchema:
        self.asked.append(schema_id)
        return self._schemas.by_id(schema_id)

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        return self._schemas.version(subject, version)


@pytest.fixture
def schemas(store: Store) -> Store:
    """A store with two versions of ``orders-value``, and topic ``orders``."""
    store.topics.create("orders")
    for schema in (V1, V2):
        store.schemas.add(SUBJECT, json.dumps(schema))
    return store


def test_values_of_several_versions_are_columns_of_the_newest(schemas: Store) -> None:
    """By ids, whatever stands between; a tombstone has none, and a dead letter has its reason."""
    old = ValueWriter(schemas.schemas, "avro", subject=SUBJECT, version=1)
    new = ValueWriter(schemas.schemas, "avro", subject=SUBJECT)
    sent = [
        old({"id": 1}),
        None,
        new({"id": 2, "note": "n"}),
        b"\0\0\0\0\x63x",
        b"some text",
        b"",
        b"\1\0\0\0\1\2",
        old({"id": 3}) + b"\0",
        new({"id": 4}),
    ]
    with schemas.producer() as producer:
        for value in sent:
            producer.send("orders", value, key=b"k")
    counted = Counted(schemas)
    reader = ValueReader(counted, "AVRO", subject=SUBJECT)
    scan = schemas.scan("orders", columns=["offset", "key", "value"])
    found = pa.Table.from_batches(reader.read(scan.to_batches())).to_pylist()
    assert [(row["id"], row["note"]) for row in found] == [
        (1, "-"),
        (None, None),
        (2, "n"),
        *[(None, None)] * 5,
        (4, "-"),
    ]
    assert [row["_offset"] for row in found] == [*range(9)]
    errors = {row["_offset"]: row["_error"] for row in found if row["_error"] is not None}
    assert [*errors] == [3, 4, 5, 6, 7]
    reasons = (
        "schema 99 is unknown",
        "begins with the byte 115",
        "0 bytes",
        "byte 1,",
        "1 bytes are left",
    )
    for reason, error in zip(reasons, errors.values(), strict=True):
        assert reason in error
    assert {row["_offset"]: row["_value"] for row in found if row["_value"] is not None} == {
        number: sent[number] for number in errors
    }
    assert counted.asked == [1, 99]  # the newest is known
    assert pa.Table.from_batches(reader.read(scan.to_batches())).num_rows == 9
    assert counted.asked == [1, 99, 99]


def test_several_ids_cost_what_one_does(store: Store) -> None:
    """A batch of two versions is one piece, however many rows it has."""
    fields = [{"name": f"f{number}", "type": "int"} for number in range(20)]
    later = {"name": "later", "type": "int", "default": 0}
    for named in (fields, [*fields, later]):
        store.schemas.add("s", json.dumps({"type": "record", "name": "R", "fields": named}))
    row = {f"f{number}": number for number in range(20)}
    old, new = (
        ValueWriter(store.schemas, "avro", subject="s", version=number)(row) for number in (1, 2)
    )
    reader = ValueReader(store.schemas, "avro", subject="s")
    batch = pa.record_batch({"value": pa.array([old, new] * 10_000, pa.binary())})
    (found,) = reader.read([batch])
    assert found.num_rows == 20_000
    assert found["_error"].null_count == 20_000


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view()])
def test_slices_and_other_layouts_of_bytes(schemas: Store, kind: pa.DataType) -> None:
    """Whatever Arrow calls them, and wherever they begin."""
    writer = ValueWriter(schemas.schemas, "avro", subject=SUBJECT)
    rows = [{"id": number, "note": str(number)} for number in range(10)]
    values = writer.encode(pa.RecordBatch.from_pylist(rows, writer.schema))
    reader = ValueReader(schemas.schemas, "avro", subject=SUBJECT)
    for array in (
        values.cast(kind).slice(3),
        values.slice(3),
        pa.chunked_array([values[3:5], values[5:]]),
    ):
        assert reader.decode(array).columns.to_pylist() == rows[3:]
    assert reader.decode(values[:0]).columns.num_rows == 0
    assert (
        reader.decode(pa.nulls(2, pa.binary())).columns.to_pylist()
        == [{"id": None, "note": None}] * 2
    )
    with pytest.raises(InvalidOption, match="values are bytes, not int64"):
        reader.decode(pa.array([1]))


def test_ids_of_eight_bytes(schemas: Store) -> None:
    """As Apicurio's serializers can write them; a reader of four takes none of these for others."""
    writer = ValueWriter(schemas.schemas, "avro", subject=SUBJECT, id_bytes=8)
    value = writer({"id": 7, "note": "x"})
    assert value[:9] == b"\0" + (2).to_bytes(8, "big")
    wide = ValueReader(schemas.schemas, "avro", subject=SUBJECT, id_bytes=8)
    assert wide(value) == {"id": 7, "note": "x"}
    with pytest.raises(InvalidRecord, match="schema 0 is unknown"):
        ValueReader(schemas.schemas, "avro", subject=SUBJECT)(value)
    with pytest.raises(InvalidOption, match="4 or 8"):
        ValueReader(schemas.schemas, "avro", subject=SUBJECT, id_bytes=5)


def test_a_producer_and_a_consumer(schemas: Store) -> None:
    """They take both as functions of a value, and dicts go in and come out."""
    writer = ValueWriter(schemas.schemas, "avro", subject=SUBJECT)
    with schemas.producer(value_serializer=writer) as producer:
        producer.send("orders", {"id": 1, "note": "a"})
        with pytest.raises(InvalidRecord, match="no field 'other'"):
            producer.send("orders", {"id": 1, "other": 2})
        with pytest.raises(InvalidRecord, match="column 'id' is string, its type is int64"):
            producer.send("orders", {"id": "text"})
        with pytest.raises(InvalidRecord, match="cannot be written"):
            producer.send("orders", {"note": "without an id"})
    reader = ValueReader(schemas.schemas, "avro", subject=SUBJECT)
    with schemas.consumer(
        "orders", auto_offset_reset="earliest", value_deserializer=reader
    ) as consumer:
        assert [record.value for record in consumer.poll()] == [{"id": 1, "note": "a"}]


def test_a_reader_travels(schemas: Store) -> None:
    """With the schema whose columns were promised, whatever was registered since."""
    reader = ValueReader(schemas.schemas, "avro", subject=SUBJECT)
    value = ValueWriter(schemas.schemas, "avro", subject=SUBJECT)({"id": 1, "note": "n"})
    schemas.schemas.add(SUBJECT, json.dumps(V1))
    arrived = pickle.loads(pickle.dumps(reader))
    assert arrived.schema == reader.schema
    assert arrived(value) == {"id": 1, "note": "n"}


@pytest.mark.parametrize("where", ["store", "folder", "empty store", "anywhere"])
def test_a_pinned_reader_knows_what_was_there(schemas: Store, tmp_path: Path, where: str) -> None:
    """In each copy: what is registered later stays unknown, what is deleted stays known."""
    paths = [tmp_path / f"{SUBJECT}-{number}.avsc" for number in (1, 2, 3)]
    for path, schema in zip(paths[:2], (V1, V2), strict=True):
        path.write_text(json.dumps(schema))
    of: Schemas = SchemaFolder(tmp_path) if where == "folder" else schemas.schemas
    reader = ValueReader(Counted(schemas) if where == "anywhere" else of, "avro", subject=SUBJECT)
    values = pa.array([b"\0\0\0\0%c\x02\0\0" % number for number in (1, 2, 3)])
    if where == "empty store":
        pinned = txnlog.open(str(tmp_path / "other"), create=True).schemas.pinned()
        with pytest.raises(UnknownSchema, match="no schema with id 1"):
            pickle.loads(pickle.dumps(pinned)).by_id(1)
        return
    pinned_reader = reader.pinned()
    if where == "anywhere":
        assert pinned_reader is None
        return
    assert pinned_reader is not None
    before, again = (pickle.dumps(one) for one in (pinned_reader, pinned_reader.pinned()))
    schemas.schemas.add(SUBJECT, json.dumps({**V2, "doc": "a third"}))
    schemas.schemas.delete(SUBJECT, 1)
    schemas.schemas.delete(SUBJECT, 1, permanent=True)
    paths[2].write_text(json.dumps(V2))
    known = [reader.decode(values).errors[2].as_py()]
    for copied in (before, again):
        found: list[str | None] = pickle.loads(copied).decode(values).errors.to_pylist()
        assert [bool(reason and "unknown" in reason) for reason in found] == [False, False, True]
        known += found[:2]
    assert not any("unknown" in (reason or "") for reason in known)
    paths[0].unlink()
    if where == "folder":
        with pytest.raises(StorageError, match=r"orders-value-1.avsc cannot be read: No such file"):
            pickle.loads(before).decode(values)


def test_many_ids_that_are_there(store: Store) -> None:
    """A topic may have any number of them."""
    store.schemas.set_compatibility("NONE")
    for count in range(6):
        fields = [{"name": f"f{n}", "type": "int", "default": 0} for n in range(count)]
        store.schemas.add(SUBJECT, json.dumps({**V1, "fields": [*V1["fields"], *fields]}))
    values = [
        ValueWriter(store.schemas, "avro", subject=SUBJECT, version=version)({"id": version})
        for version in range(1, 7)
    ]
    reader = ValueReader(store.schemas, "avro", subject=SUBJECT, version=1)
    assert reader.decode(pa.array(values, pa.binary())).errors.null_count == 6


INNER = {
    "type": "record",
    "name": "I",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["int", "null"], "default": 5}],
}
NESTED: dict[str, tuple[Any, Any, Any]] = {
    "record": (INNER, {"x": 1}, {"x": 1, "y": 5}),
    "null or record": (["null", INNER], {"x": 1}, {"x": 1, "y": 5}),
    "list": ({"type": "array", "items": INNER}, [{"x": 1}, {"x": 2, "y": None}], None),
    "map": ({"type": "map", "values": INNER}, {"k": {"x": 1}}, [("k", {"x": 1, "y": 5})]),
    "union": (
        ["string", INNER],
        {"member1": {"x": 1}},
        {"member0": None, "member1": {"x": 1, "y": 5}},
    ),
}
"""Types with a record in them, a value without its field ``y``, and the value that is written."""


@pytest.mark.parametrize("name", NESTED)
def test_fields_that_are_left_out_or_unknown_at_any_depth(store: Store, name: str) -> None:
    """They have their defaults; what the schema has not is no value of it."""
    kind, given, expected = NESTED[name]
    expected = expected or [{"x": 1, "y": 5}, {"x": 2, "y": None}]
    schema = {"type": "record", "name": "R", "fields": [{"name": "o", "type": kind}]}
    store.schemas.add(SUBJECT, json.dumps(schema))
    write = ValueWriter(store.schemas, "avro", subject=SUBJECT)
    read = ValueReader(store.schemas, "avro", subject=SUBJECT)
    assert read(write({"o": given})) == {"o": expected}
    wrong = json.loads(json.dumps(given).replace('"x"', '"unknown"'))
    with pytest.raises(InvalidRecord, match=r"column 'o.*' has no field 'unknown'"):
        write({"o": wrong})
    column = pa.array([{"y": 1, "z": 2}])
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), column)
    for batch in ({"p": column}, {"o": lists if name == "list" else column}):
        if name in ("map", "union") and "o" in batch:
            continue
        with pytest.raises(InvalidRecord, match=r"the schema has no field '(p|o\.z)'"):
            write.encode(pa.record_batch(batch))


LISTS = {
    "list": pa.list_,
    "large list": pa.large_list,
    "list of a fixed size": partial(pa.list_, list_size=1),
    "list view": pa.list_view,
    "large list view": pa.large_list_view,
}


@pytest.mark.parametrize("name", LISTS)
def test_unknown_fields_within_lists_of_any_kind(store: Store, name: str) -> None:
    """Those of Polars' frames are large ones."""
    listed = {"name": "o", "type": {"type": "array", "items": INNER}}
    schema = {"type": "record", "name": "R", "fields": [listed]}
    store.schemas.add(SUBJECT, json.dumps(schema))
    write = ValueWriter(store.schemas, "avro", subject=SUBJECT)
    read = ValueReader(store.schemas, "avro", subject=SUBJECT)
    known, more = pa.struct({"x": "int64", "y": "int64"}), pa.struct({"y": "int64", "z": "int64"})
    rows = pa.array([[{"x": 1, "y": 2}]], LISTS[name](known))
    assert read(write.encode(pa.record_batch({"o": rows}))[0].as_py()) == {"o": [{"x": 1, "y": 2}]}
    with pytest.raises(InvalidRecord, match=r"the schema has no field 'o\.z'"):
        write.encode(pa.record_batch({"o": pa.array([[{"y": 1, "z": 2}]], LISTS[name](more))}))


def test_unknown_fields_within_a_struct_that_becomes_a_map(store: Store) -> None:
    """Frames that have no maps have structs: of these the fields are the keys."""
    mapped = {"name": "o", "type": {"type": "map", "values": INNER}}
    schema = {"type": "record", "name": "R", "fields": [mapped]}
    store.schemas.add(SUBJECT, json.dumps(schema))
    write = ValueWriter(store.schemas, "avro", subject=SUBJECT)
    read = ValueReader(store.schemas, "avro", subject=SUBJECT)
    rows = pa.array([{"k": {"x": 1, "y": 2}}])
    found = read(write.encode(pa.record_batch({"o": rows}))[0].as_py())
    assert found == {"o": [("k", {"x": 1, "y": 2})]}
    with pytest.raises(InvalidRecord, match=r"the schema has no field 'o\.z'"):
        write.encode(pa.record_batch({"o": pa.array([{"k": {"x": 1, "z": 2}}])}))


@pytest.mark.parametrize("kind", ["date", "timestamp-micros", "local-timestamp-micros"])
def test_times_after_those_of_python(store: Store, kind: str) -> None:
    """A column has them; a dict cannot."""
    store.schemas.set_compatibility("NONE")
    base = "int" if kind == "date" else "long"
    fields = [[{"name": "at", "type": one}] for one in (base, {"type": base, "logicalType": kind})]
    for one in fields:
        store.schemas.add(SUBJECT, json.dumps({**V1, "fields": one}))
    far = (1 << 31) - 1 if kind == "date" else 10**18
    value = ValueWriter(store.schemas, "avro", subject=SUBJECT, version=1)({"at": far})
    reader = ValueReader(store.schemas, "avro", subject=SUBJECT)
    decoded = reader.decode(pa.array([value], pa.binary()))
    assert decoded.columns.column("at").is_valid().to_pylist() == [True]
    with pytest.raises(InvalidRecord, match=r"a time that Python has not .* as Arrow"):
        reader(value)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("where", ["store", "folder"])
def test_what_is_said_of_a_value_is_no_matter_of_others(
    schemas: Store, tmp_path: Path, where: str, pinned: bool
) -> None:
    """However many with unknown ids stand before it, in its batch or an earlier one."""
    for number, schema in ((1, V1), (2, V2), (9_000, V1)):
        (tmp_path / f"{SUBJECT}-{number}.avsc").write_text(json.dumps(schema))
    of: Schemas = SchemaFolder(tmp_path) if where == "folder" else schemas.schemas
    reader = ValueReader(of, "avro", subject=SUBJECT, version=2)
    reader = reader.pinned() or reader if pinned else reader
    junk = [b"\0" + number.to_bytes(4, "big") for number in range(100, 3_100)]
    last = b"\0" + (9_000).to_bytes(4, "big")
    sound = [head + b"\2" for head in (b"\0\0\0\0\1", *[last] * (where == "folder"))]
    for batch in ([*junk, *sound], junk, sound):
        errors = reader.decode(pa.array(batch, pa.binary())).errors.to_pylist()
        expected = [f"schema {int.from_bytes(value[1:5], 'big')} is unknown" for value in batch]
        assert [error and error.partition(":")[0] for error in errors] == [
            None if value in sound else said for value, said in zip(batch, expected, strict=True)
        ]


def test_unknown_ids_of_a_store_take_one_answer(
    schemas: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of others are no reason for a million requests: the rest is said of one moment."""
    taken: list[object] = []

    def take(*given: Any, **more: Any) -> Snapshot:
        taken.append(given)
        return take_snapshot(*given, **more)

    reader = ValueReader(schemas.schemas, "avro", subject=SUBJECT)
    monkeypatch.setattr("txnlog.schemas.take_snapshot", take)
    junk = [b"\0" + number.to_bytes(4, "big") for number in range(100, 1_100)]
    assert reader.decode(pa.array(junk, pa.binary())).errors.null_count == 0
    assert len(taken) == 2


def test_an_unknown_id_is_asked_for_again(schemas: Store) -> None:
    """It may be registered just after its values: each batch asks once for those that it has."""
    counted = Counted(schemas)
    reader = ValueReader(counted, "avro", subject=SUBJECT)
    values = pa.array([b"\0\0\0\0%c\2\2n" % number for number in (3, 4, 90, 4, 90)])

    def read(*known: int) -> None:
        errors = reader.decode(values).errors.to_pylist()
        assert [number for number, error in enumerate(errors) if error is None] == [*known]

    read()
    assert counted.asked == [3, 4, 90]
    for number in (3, 4):
        schemas.schemas.add(SUBJECT, json.dumps({**V2, "doc": f"id {number}"}))
    read(0, 1, 3)
    read(0, 1, 3)
    assert counted.asked[3:] == [3, 4, 90, 90]


def test_references(store: Store) -> None:
    """Named types of other subjects; a circle of them, or a missing one, is refused."""
    item = {"type": "record", "name": "shop.Item", "fields": [{"name": "n", "type": "int"}]}
    order = {"type": "record", "name": "O", "fields": [{"name": "i", "type": "shop.Item"}]}
    store.schemas.add("item", json.dumps(item))
    reference = SchemaReference("shop.Item", "item", 1)
    added = store.schemas.add("order", json.dumps(order), references=[reference])
    assert store.schemas.by_id(added.id).references == (reference,)
    writer = ValueWriter(store.schemas, "avro", subject="order")
    reader = ValueReader(store.schemas, "avro", subject="order")
    assert reader(writer({"i": {"n": 3}})) == {"i": {"n": 3}}
    missing = SchemaReference("shop.Item", "item", 9)
    with pytest.raises(UnknownSchema, match="refers to one"):
        store.schemas.add("order", json.dumps(order), references=[missing])
    with pytest.raises(InvalidSchema, match=re.escape("no type 'shop.Item'")):
        store.schemas.add("order", json.dumps(order))


def _record(name: str, **fields: str) -> str:
    types = [
        {"name": one, "type": kind, **({"default": 0} if kind == "int" else {})}
        for one, kind in fields.items()
    ]
    return json.dumps({"type": "record", "name": name, "fields": types})


def _file(name: str, **fields: str) -> str:
    imports = [f'import "{kind}.proto"; ' for kind in fields.values() if kind in "ABC"]
    listed = [f"{kind}32 {n}" if kind == "int" else f"{kind} {n}" for n, kind in fields.items()]
    numbered = " ".join(f"{one} = {number};" for number, one in enumerate(listed, 1))
    return f'syntax = "proto3"; {"".join(imports)}message {name} {{ {numbered} }}'


def _descriptor(name: str, **fields: str) -> str:
    file = FileDescriptorProto(name=f"{name}.proto", syntax="proto3")
    message = file.message_type.add(name=name)
    for number, (one, kind) in enumerate(fields.items(), 1):
        if kind == "int":
            message.field.add(name=one, number=number, label=1, type=5)
        else:
            file.dependency.append(f"{kind}.proto")
            message.field.add(name=one, number=number, label=1, type=11, type_name=f".{kind}")
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("kind", "ending", "make"),
    [
        pytest.param("AVRO", "", _record, id="avro"),
        pytest.param("PROTOBUF", ".proto", _file, id="protobuf"),
        pytest.param("PROTOBUF", ".proto", _descriptor, id="descriptors"),
    ],
)
def test_one_name_in_several_versions(
    store: Store, kind: str, ending: str, make: Callable[..., str]
) -> None:
    """What the schema itself refers to is meant, in any order; else what is met first."""

    def add(subject: str, text: str, **names: tuple[str, int]) -> None:
        references = [SchemaReference(name + ending, *where) for name, where in names.items()]
        store.schemas.add(subject, text, kind, references)

    for fields in ({"a": "int"}, {"a": "int", "b": "int"}, {"a": "int", "b": "int", "c": "int"}):
        add("c", make("C", **fields))
    add("a", make("A", c="C"), C=("c", 2))
    add("b", make("B", c="C"), C=("c", 1))
    places = {"A": ("a", 1), "B": ("b", 1)}
    for own in (None, 3):
        for number, names in enumerate(permutations("AB" if own is None else "ABC")):
            subject = f"top-{own}-{number}"
            where = {name: places.get(name, ("c", own or 0)) for name in names}
            types = {name.lower(): name for name in "ABC" if name in names}
            add(subject, make("T", **types), **where)
            found = ValueReader(store.schemas, kind.lower(), subject=subject).schema
            inner = [found.field(name).type.field("c").type for name in "ab"]
            if own is not None:
                inner.append(found.field("c").type)
            meant = own or {"A": 2, "B": 1}[names[0]]
            assert [one.num_fields for one in inner] == [meant] * len(inner)


class _Circle:
    """Schemas that refer to each other."""

    def by_id(self, schema_id: int) -> RegisteredSchema:
        return self.version("a", schema_id)

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        other = SchemaReference("x", "b" if subject == "a" else "a", 1)
        return RegisteredSchema(1, "AVRO", '"int"', (other,), subject, version)


def test_a_circle_of_references() -> None:
    """It ends in an error, not in the end of the stack."""
    with pytest.raises(InvalidSchema, match="in a circle"):
        ValueReader(_Circle(), "avro", subject="a")


class _Large:
    """Schemas with a long text; each refers to two others, or to none."""

    def __init__(self, size: int, *, referring: bool = False) -> None:
        self._doc = "x" * size
        self._referring = referring

    def by_id(self, schema_id: int) -> RegisteredSchema:
        record = {"type": "record", "name": f"R{schema_id}", "doc": self._doc, "fields": []}
        references = tuple(
            SchemaReference(f"R{number}", "s", number)
            for number in (2 * schema_id, 2 * schema_id + 1)
            if self._referring and number < 16
        )
        return RegisteredSchema(schema_id, "AVRO", json.dumps(record), references)

    def version(self, _: str, version: int | None = None) -> RegisteredSchema:
        return self.by_id(version or 1)


def test_schemas_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that one refers to, and those that are kept: a source may make up any number."""
    assert ValueReader(_Large(200_000, referring=True), "avro", subject="s").schema.names == []
    with pytest.raises(InvalidSchema, match="refers to more than 4194304 characters"):
        ValueReader(_Large(300_000, referring=True), "avro", subject="s")
    # Each of 4 to 7 refers to two others.
    for most, referring, kept in ((3_500, False, 3), (7_000, True, 2)):
        monkeypatch.setattr("txnlog.values.reader.MOST_TOGETHER_BYTES", most)
        reader = ValueReader(_Large(1_000, referring=referring), "avro", subject="s")
        values = [b"\0\0\0\0" + bytes([number]) for number in range(4, 8)]
        for _ in range(2):
            assert reader.decode(pa.array(values)).errors.null_count == len(values)
            assert len(reader._codecs) <= 1 + kept


def test_a_schema_that_is_not_readable_is_read_once(tmp_path: Path) -> None:
    """Unless its file has become another one: it may have been half copied."""
    for number in (1, 2):
        (tmp_path / f"{SUBJECT}-{number}.avsc").write_text(json.dumps(V1))
    reader = ValueReader(SchemaFolder(tmp_path), "avro", subject=SUBJECT)
    value = pa.array([b"\0\0\0\0\1\2"])
    half = tmp_path / f"{SUBJECT}-1.avsc"
    half.write_text(json.dumps(V1)[:20])
    parsed: list[str] = []

    def parse(*given: Any) -> Codec:
        parsed.append(given[1])
        return parse_schema(*given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("txnlog.values.reader.parse_schema", parse)
        for _ in range(3):
            assert "not readable" in reader.decode(value).errors[0].as_py()
        assert len(parsed) == 1
    half.write_text(json.dumps(V1))
    assert reader.decode(value).columns.to_pylist() == [{"id": 1}]


def test_schemas_in_files(tmp_path: Path, schemas: Store) -> None:
    """By the id in their names; the subject's with the greatest is its newest."""
    for name, schema in (("orders-value-1.avsc", V1), ("2.avsc", V2), ("other-9.avsc", V1)):
        (tmp_path / name).write_text(json.dumps(schema))
    (tmp_path / "readme.txt").write_text("no schema")
    folder = SchemaFolder(tmp_path)
    assert folder.version(SUBJECT).id == 1
    assert folder.version("unheard").id == 2  # without a subject it is of any
    assert folder.by_id(9).text == json.dumps(V1)
    with pytest.raises(UnknownSchema, match="id 3"):
        folder.by_id(3)
    value = ValueWriter(schemas.schemas, "avro", subject=SUBJECT)({"id": 1, "note": "n"})
    assert ValueReader(folder, "avro", subject=SUBJECT)(value) == {"id": 1}
    with pytest.raises(InvalidOption, match="not a folder"):
        SchemaFolder(tmp_path / "missing")


def test_a_folder_of_schemas_that_is_gone(tmp_path: Path, schemas: Store) -> None:
    """As on a machine that does not have it: no dead letters, since nothing is known."""
    made = tmp_path / "made"
    made.mkdir()
    (made / f"{SUBJECT}-1.avsc").write_text(json.dumps(V1))
    reader = ValueReader(SchemaFolder(made), "avro", subject=SUBJECT)
    made.rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="made cannot be listed: No such file"):
        reader.decode(pa.array([ValueWriter(schemas.schemas, "avro", subject=SUBJECT)({"id": 1})]))


@pytest.mark.parametrize("half", [b"", b'{"type": "reco', b'{"name": "\xc3'], ids=repr)
def test_a_pinned_file_is_what_it_was(tmp_path: Path, half: bytes) -> None:
    """One that was being copied then is no schema to any that are pinned so, or an error."""
    whole = json.dumps(V1).encode()
    files = [tmp_path / f"{SUBJECT}-{number}.avsc" for number in (1, 2)]
    value = pa.array([b"\0\0\0\0\1\2"])
    for first, second in ((half, whole), (whole, half)):
        files[0].write_bytes(first)
        files[1].write_bytes(whole)
        reader = ValueReader(SchemaFolder(tmp_path), "avro", subject=SUBJECT).pinned()
        assert reader is not None
        copies = [pickle.dumps(reader), pickle.dumps(reader.pinned())]
        for copy in copies:
            errors = pickle.loads(copy).decode(value).errors
            assert errors.null_count == (first == whole)
        files[0].write_bytes(second)
        for copy in copies:
            with pytest.raises(StorageError, match="has changed since"):
                pickle.loads(copy).decode(value)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(24, "too many files")])
def test_a_file_that_cannot_be_read_says_nothing_of_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, pinned: bool
) -> None:
    """To this process, now: it is an error, and none for others. When it can be read, it is."""
    for number in (1, 2):
        (tmp_path / f"{SUBJECT}-{number}.avsc").write_text(json.dumps(V1))
    reader = ValueReader(SchemaFolder(tmp_path), "avro", subject=SUBJECT)
    values = [pa.array([b"\0\0\0\0%c\2" % number]) for number in (1, 2, 9)]
    opened = Path.open

    def fail(path: Path, *given: Any) -> Any:
        if path.name.endswith("-1.avsc"):
            raise error
        return opened(path, *given)

    if pinned:
        reader = reader.pinned() or reader
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", fail)
        with pytest.raises(StorageError, match=r"-1.avsc cannot be read: (denied|too many)"):
            reader.decode(values[0])
        assert reader.decode(values[1]).errors.null_count == 1
        assert "unknown" in reader.decode(values[2]).errors[0].as_py()
    assert reader.decode(values[0]).errors.null_count == 1


def test_what_cannot_be_read_is_said(schemas: Store) -> None:
    """Names, formats, and fields that are called as a part of each record."""
    with pytest.raises(UnknownSchema, match="no subject 'unheard'"):
        ValueReader(schemas.schemas, "avro", subject="unheard")
    with pytest.raises(UnknownSchema, match="no version 7"):
        ValueReader(schemas.schemas, "avro", subject=SUBJECT, version=7)
    with pytest.raises(InvalidOption, match="it is avro, protobuf or json"):
        ValueReader(schemas.schemas, "xml", subject=SUBJECT)
    with pytest.raises(InvalidOption, match="is AVRO, not JSON"):
        ValueWriter(schemas.schemas, "json", subject=SUBJECT)
    taken: dict[str, Any] = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "_Offset", "type": "int"}],
    }
    schemas.schemas.add("taken", json.dumps(taken))
    with pytest.raises(InvalidSchema, match="'_Offset'"):
        ValueReader(schemas.schemas, "avro", subject="taken")
