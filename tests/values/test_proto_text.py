"""Schemas of Protobuf as the text of a .proto: what it becomes, and what hostile text comes to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tests.support.cli.cli_command import cli
from tests.values.protobuf_files import ROW, add, order, text_of
from tests.values.registry_server import serving
from txnlog.errors import InvalidOption, InvalidSchema, StorageError, TxnlogError
from txnlog.store import Store
from txnlog.values import SchemaFolder, SchemaReference, SchemaRegistry, ValueReader, ValueWriter
from txnlog.values import proto_text as compiler

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
// The fields of order(), by hand.
message Order {
  int32 a_int32 = 1;  int64 a_int64 = 2;  uint32 a_uint32 = 3;  uint64 a_uint64 = 4;
  sint64 a_sint64 = 5;  bool a_bool = 6;  string a_string = 7;  bytes a_bytes = 8;
  double a_double = 9;
  repeated string tags = 20;
  message Item { int32 n = 1; }
  repeated Item items = 21;
  Item item = 22;
  google.protobuf.Timestamp at = 23;
  map<string, int64> sizes = 24;
  Colour colour = 25;
  optional int32 maybe = 26;
}
enum Colour { RED = 0; BLUE = 1; }
message Other { string x = 1; }
"""
BASKET = """
syntax = "proto3";
package shop;
import "orders/order.proto";
message Basket { repeated Order orders = 1; }
"""


def test_a_text_is_what_its_descriptor_is(store: Store) -> None:
    """The same columns and the same bytes; each may follow the other in a subject."""
    store.schemas.set_compatibility("FULL")
    store.schemas.add("order", text_of(order()), "PROTOBUF")
    store.schemas.add("order", ORDER, "PROTOBUF")
    by_descriptor = ValueWriter(store.schemas, "protobuf", subject="order", version=1)
    by_text = ValueWriter(store.schemas, "protobuf", subject="order", version=2)
    assert by_text.schema == by_descriptor.schema
    assert by_text(ROW)[5:] == by_descriptor(ROW)[5:]
    reader = ValueReader(store.schemas, "protobuf", subject="order")
    assert reader(by_descriptor(ROW)) == reader(by_text(ROW)) == ROW


@pytest.mark.parametrize("imported", [ORDER, text_of(order())], ids=["text", "descriptor"])
@pytest.mark.parametrize("is_text", [True, False])
def test_imports_are_references(store: Store, imported: str, is_text: bool) -> None:
    """Texts and descriptors may import each other; whatever files are called, no file is read."""
    file = FileDescriptorProto(name="--plugin=x", package="shop", syntax="proto3")
    file.dependency.append("orders/order.proto")
    add(file.message_type.add(name="Basket"), 1, "orders", ".shop.Order", repeated=True)
    store.schemas.add("order", imported, "PROTOBUF")
    reference = SchemaReference("orders/order.proto", "order", 1)
    text = BASKET if is_text else text_of(file)
    store.schemas.add("basket", text, "PROTOBUF", [reference])
    value = ValueWriter(store.schemas, "protobuf", subject="basket")({"orders": [ROW]})
    reader = ValueReader(store.schemas, "protobuf", subject="basket")
    assert reader(value) == {"orders": [ROW]}


def test_names_that_are_taken(store: Store) -> None:
    """What a schema is called while it is compiled is no name of what it imports."""
    item = 'syntax = "proto3"; message Item { int32 n = 1; }'
    store.schemas.add("item", item, "PROTOBUF")
    text = 'syntax = "proto3"; import "schema.proto"; message Box { Item item = 1; }'
    reference = SchemaReference("schema.proto", "item", 1)
    store.schemas.add("box", text, "PROTOBUF", [reference])
    assert ValueReader(store.schemas, "protobuf", subject="box").schema.names == ["item"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing", 'schema.proto:1:1: Expected top-level statement \\(e.g. "message"\\)'),
        ('syntax = "proto3"; message M { Gone g = 1; }', '"Gone" is not defined'),
        ('syntax = "proto3"; import "/etc/passwd"; message M {}', "/etc/passwd: File not found"),
        ('syntax = "proto3"; import "../descriptors.pb"; message M {}', "not allowed"),
        ('syntax = "proto3"; import "texts/schema.proto"; message M {}', "File not found"),
        ('syntax = "proto3"; import "schema.proto"; message M {}', "imports itself"),
        ("message A {" * 50_000, "deep|nest|recurs|Reached"),
        ('syntax = "proto3"; enum E { A = 0; }', "has no message"),
        ('syntax = "proto3"; message M { string \ud800 = 1; }', "cannot be read"),
    ],
    ids=lambda given: given[:40],
)
def test_texts_that_are_refused(store: Store, text: str, reason: str) -> None:
    """With the compiler's reason, and without a file of this machine."""
    with pytest.raises(InvalidSchema, match=reason):
        store.schemas.add("s", text, "PROTOBUF")


@pytest.mark.parametrize(
    "name",
    ["/tmp/x.proto", "../x.proto", "a/../x.proto", "@x.proto", "-Ix.proto", "x.py", "é.proto"],
)
def test_names_that_would_lead_elsewhere(store: Store, name: str) -> None:
    """They are refused before a file is made or the compiler is asked."""
    store.schemas.add("order", ORDER, "PROTOBUF")
    with pytest.raises(InvalidSchema, match="cannot be the name of a"):
        store.schemas.add("s", BASKET, "PROTOBUF", [SchemaReference(name, "order", 1)])


def test_a_file_and_a_folder_of_one_name(store: Store) -> None:
    store.schemas.add("order", ORDER, "PROTOBUF")
    names = ("a.proto", "a.proto/b.proto")
    for version, name in enumerate(names, 1):
        store.schemas.add(name, f"{ORDER} // {version}", "PROTOBUF")
    references = [SchemaReference(name, name, 1) for name in names]
    with pytest.raises(InvalidSchema, match="cannot be read"):
        store.schemas.add("s", BASKET, "PROTOBUF", references)


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("while True: pass", "has not ended"),
        ("raise SystemExit('output.pb: No space left on device')", "No space left on device"),
        (
            "raise SystemExit('texts/schema.proto:1:1: warning: of x\\noutput.pb: full')",
            "a text: output.pb: full",
        ),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("raise SystemExit(7)", "ended with 7"),
        pytest.param(
            "import os; os.kill(os.getpid(), 11)",
            "ended with -11",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal"),
        ),
        pytest.param(
            "import os; os.kill(os.getpid(), 9)",
            "killed",
            marks=pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal"),
        ),
    ],
)
def test_a_machine_that_is_too_busy_says_nothing_of_a_text(
    store: Store, monkeypatch: pytest.MonkeyPatch, does: str, reason: str
) -> None:
    """No value becomes a dead letter by it: it is an error, as a registry that is not there."""
    store.schemas.add("order", f"{ORDER} // {does!r}", "PROTOBUF")
    schema_id = store.schemas.version("order").id.to_bytes(4, "big")
    store.schemas.add("other", ORDER, "PROTOBUF")
    compiler._compile_small.cache_clear()
    reader = ValueReader(store.schemas, "protobuf", subject="other")
    if reason == "has not ended":
        monkeypatch.setattr(compiler, "_TIMEOUT_S", 0.5)
    monkeypatch.setattr(compiler, "_CHILD", does)
    with pytest.raises(StorageError, match=reason):
        reader(b"\0" + schema_id + b"\0")


def test_a_full_disk_says_nothing_of_a_text(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(StorageError, match="No space left"):
        store.schemas.add("s", f"{ORDER} // full", "PROTOBUF")


@pytest.mark.skipif(sys.platform != "linux", reason="limits are the kernel's")
@pytest.mark.parametrize(
    ("does", "error", "reason"),
    [
        # Whose memory it was that ended nobody can say.
        ("x = bytearray(4 << 30)", StorageError, "MemoryError"),
        ("open('output.pb', 'wb').write(bytes(17 << 20))", InvalidSchema, "File too large"),
        ("while True: pass", InvalidSchema, "ended with -24"),
    ],
)
def test_limits_of_the_compiler(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    does: str,
    error: type[TxnlogError],
    reason: str,
) -> None:
    """They hold in its process."""
    limits, _, _ = compiler._CHILD.partition("from grpc_tools")
    limits = limits.replace(f"('CPU', {compiler._CPU_S})", "('CPU', 1)")
    monkeypatch.setattr(compiler, "_CHILD", limits + does)
    monkeypatch.setattr(compiler, "_MOST_SHOWN", 1000)
    with pytest.raises(error, match=reason):
        store.schemas.add("s", f"{ORDER} // {does}", "PROTOBUF")


def test_a_text_is_compiled_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many read by it: as tasks of Spark do, one after the other in a process."""
    store.schemas.add("order", f"{ORDER} // once", "PROTOBUF")
    monkeypatch.setattr(compiler, "_run", None)
    for _ in range(3):
        ValueReader(store.schemas, "protobuf", subject="order")


def test_what_is_long_is_not_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some hundred results of megabytes would be more than there is memory."""
    text = f"{ORDER} // {'x' * compiler._MOST_KEPT}"
    store.schemas.add("order", text, "PROTOBUF")
    monkeypatch.setattr(compiler, "_run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ValueReader(store.schemas, "protobuf", subject="order")


def test_without_the_compiler(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said what to install; descriptors need none."""
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    store.schemas.add("order", text_of(order()), "PROTOBUF")
    with pytest.raises(InvalidOption, match="grpc"):
        store.schemas.add("order", f"{ORDER} // without", "PROTOBUF")


def test_files_of_text(tmp_path: Path) -> None:
    """Added by the command with what they import; in a folder by their ids."""
    (tmp_path / "order.proto").write_text(ORDER)
    (tmp_path / "basket.proto").write_text(BASKET)
    at = ("--store", tmp_path / "store")
    assert cli("store", "create", *at).code == 0
    assert cli("schemas", "add", "order", tmp_path / "order.proto", *at).code == 0
    added = ("schemas", "add", "basket", tmp_path / "basket.proto", *at)
    assert "orders/order.proto: File not found" in cli(*added).err
    assert cli(*added, "--reference", "orders/order.proto=order:1").code == 0
    assert "message Basket" in cli("schemas", "show", "basket", *at, "-o", "json").out
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "order-7.proto").write_text(ORDER)
    reader = ValueReader(SchemaFolder(folder), "protobuf", subject="order")
    assert reader(b"\0\0\0\0\7\0\x08\x05")["a_int32"] == 5


def test_registries_that_give_texts() -> None:
    """As Apicurio's does, which knows no descriptors, and others do unless they are asked."""
    with serving() as registry:
        registry.add("order", 1, ORDER, schemaType="PROTOBUF", references=[])
        reference = {"name": "orders/order.proto", "subject": "order", "version": 1}
        registry.add("basket", 2, BASKET, schemaType="PROTOBUF", references=[reference])
        schemas = SchemaRegistry(registry.url)
        reader = ValueReader(schemas, "protobuf", subject="basket")
        value = ValueWriter(schemas, "protobuf", subject="basket")({"orders": [ROW]})
        assert reader(value) == {"orders": [ROW]}
