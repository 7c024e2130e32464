"""Nothing that is decoded can be of any size or depth: ``txnlog/limits.py`` has the limits."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache

import msgspec
import msgspec.inspect as shapes
import pytest

from tests.support.checkout import Module, modules
from txnlog import limits
from txnlog.spark.stream.offsets import StreamOffset
from txnlog.storage.whole import MOST_WHOLE_BYTES

pytestmark = pytest.mark.xdist_group("checkout")  # the process that has parsed all modules
MODULES = [module for module in modules() if module.name != "pyspark_txnlog"]
CALLS = ("json.loads", "json.load", "msgspec.json.decode", "msgspec.msgpack.decode")
"""What decodes without a decoder that has a name."""
TRUSTED = {
    "spark/maintenance.py": "what the tasks of this very job have made",
    "txnlog/read/snapshot_token.py": "`decode` calls `_unpack` within a try",
    "ui/render.py": "the same of `_lay_out`",
    "txnlog/storage/adapters/s3_files.py": "botocore's own files",
    "txnlog/tables/delta.py": "what deltalake has made of its own schema",
    "ui/pages/records.py": "JSON that was made of columns, as deep as their schema",
    "txnlog/log/manifests.py": "a state that was encoded just now",
    "txnlog/log/state_log.py": "the same",
    "txnlog/replication/standby/source.py": "the same",
    "txnlog/write/typed_lines.py": "`row` is called within a try",
    "txnlog/tables/iceberg.py": "within `reported`, which takes every error",
}
"""Modules in which a document of any depth cannot come, and why."""
BY_LINE = {"_JsonRecord", "_JsonKey", "Raw", "_Envelope", "JsonBytes", "columns_type", "key_type"}
"""Decoders of lines, which are no longer than a record may be."""
LARGEST = (1 << 63) - 1


def decoders() -> dict[str, object]:
    """What is decoded, by where: every decoder of the package, and what is converted."""
    found: dict[str, object] = {"StreamOffset": StreamOffset}
    kinds = (msgspec.json.Decoder, msgspec.msgpack.Decoder)
    for module in MODULES:
        if "Decoder(" in module.path.read_text():
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, kinds):
                    found[f"{module.where}: {name}"] = value.type
    return found


@cache
def _fields(cls: type) -> tuple[tuple[str, shapes.Type], ...]:
    described = shapes.type_info(cls)
    assert isinstance(described, (shapes.StructType, shapes.DataclassType, shapes.NamedTupleType))
    return tuple((field.name, field.type) for field in described.fields)


def unbounded(found: shapes.Type, where: str, seen: set[type]) -> Iterator[str]:
    """Where a type has no bounds."""
    match found:
        case shapes.IntType():
            low = found.ge if found.ge is not None else found.gt
            high = found.le if found.le is not None else found.lt
            if low is None or high is None or not -LARGEST <= low <= high <= LARGEST:
                yield f"{where}: a number without bounds"
        case shapes.StrType() | shapes.BytesType():
            if found.max_length is None:
                yield f"{where}: a text without bounds"
        case shapes.StructType() | shapes.DataclassType() | shapes.NamedTupleType():
            if found.cls not in seen:
                seen.add(found.cls)
                for name, kind in _fields(found.cls):
                    yield from unbounded(kind, f"{found.cls.__name__}.{name}", seen)
        case shapes.UnionType():
            for kind in found.types:
                yield from unbounded(kind, where, seen)
        case shapes.TupleType():
            for kind in found.item_types:
                yield from unbounded(kind, where, seen)
        case shapes.DictType():
            if found.max_length is None:
                yield f"{where}: an object with any number of keys"
            yield from unbounded(found.key_type, where, seen)
            yield from unbounded(found.value_type, where, seen)
        case shapes.VarTupleType() | shapes.ListType() | shapes.SetType() | shapes.FrozenSetType():
            if found.max_length is None:
                yield f"{where}: a list of any length"
            yield from unbounded(found.item_type, where, seen)
        case shapes.BoolType() | shapes.NoneType() | shapes.EnumType() | shapes.LiteralType():
            return
        case shapes.FloatType():  # of a fixed size, and nothing of ours counts with them
            return
        case shapes.RawType():  # decoded by another of these
            return
        case _:
            yield f"{where}: {type(found).__name__} has no bounds"


def test_every_decoded_number_text_and_list_has_bounds() -> None:
    """Those of all structs that any decoder of the package makes, however deep inside."""
    found = decoders()
    assert len(found) > 20
    wrong = [
        f"{where}: {problem}"
        for where, kind in found.items()
        for problem in unbounded(shapes.type_info(kind), where, set())
    ]
    assert wrong == []


def test_the_check_sees_what_has_no_bounds() -> None:
    """Each kind of it, also inside others."""
    inner = msgspec.defstruct("Inner", [("number", int), ("text", str)])
    fields = [("inner", list[inner]), ("named", dict[str, object])]  # type: ignore[valid-type]
    found = [*unbounded(shapes.type_info(msgspec.defstruct("Outer", fields)), "", set())]
    assert [problem.partition(": ")[2] for problem in found] == [
        "a list of any length",
        "a number without bounds",
        "a text without bounds",
        "an object with any number of keys",
        "a text without bounds",
        "CustomType has no bounds",
    ]


def _decodes(call: ast.Call) -> bool:
    """Whether a call decodes JSON or msgpack."""
    text = ast.unparse(call.func)
    return text in CALLS or re.fullmatch(r".*(?i:decoder|_strict|_spans)\.decode", text) is not None


def _unguarded(node: ast.AST, expects: bool) -> Iterator[ast.Call]:
    """The calls below a node that decode where a RecursionError is not expected."""
    if isinstance(node, ast.Call) and _decodes(node) and not expects:
        yield node
    if isinstance(node, ast.Try):
        caught = [ast.unparse(h.type) if h.type is not None else "" for h in node.handlers]
        handles = any(re.search(r"\b(RecursionError|Exception)\b|^$", text) for text in caught)
        for step in node.body:
            yield from _unguarded(step, expects or handles)
        for after in (*node.handlers, *node.orelse, *node.finalbody):
            yield from _unguarded(after, expects)
        return
    for child in ast.iter_child_nodes(node):
        yield from _unguarded(child, expects)


def test_what_decodes_expects_any_depth() -> None:
    """300,000 brackets end in a RecursionError, which is no error that a user can do with."""

    def calls(module: Module) -> list[int]:
        return [call.lineno for call in _unguarded(module.tree(), expects=False)]

    found = {module.where: calls(module) for module in MODULES}
    assert {where: lines for where, lines in found.items() if lines and where not in TRUSTED} == {}
    assert {where for where in TRUSTED if not found.get(where)} == set()


def test_decoders_have_names_by_which_they_are_found() -> None:
    """One that is made within a function would escape the checks above."""
    inside = [
        f"{module.where}:{call.lineno}"
        for module in MODULES
        for function in module.nodes()
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith((".json.Decoder", ".msgpack.Decoder"))
        and ast.unparse(call.args[0]).rpartition(".")[2] not in BY_LINE
    ]
    assert inside == []


def test_what_may_be_decoded_is_read() -> None:
    """No object may be larger than what storages read whole: nobody could read it."""
    most = {
        name: size for name, size in vars(limits).items() if re.fullmatch(r"MOST_\w*BYTES", name)
    }
    assert len(most) >= 3
    assert {name for name, size in most.items() if size > MOST_WHOLE_BYTES} == set()
