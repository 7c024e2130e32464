"""Batches that users send to a typed topic: checks of columns, types, nulls, and conversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from txnlog.columns.casts import as_list, cast, first_wrong, show
from txnlog.columns.constraints import Constraint
from txnlog.columns.keys import encode_keys
from txnlog.errors import InvalidRecord
from txnlog.schema import DELETED, HEADERS, PARTITION, TIMESTAMP, TopicSchema
from txnlog.segments.errors import UnsupportedRecordFormat
from txnlog.segments.records import first_not_utf8, normalize
from txnlog.segments.schema_columns import (
    children,
    default_of,
    id_of,
    with_children,
)


@dataclass(frozen=True)
class TypedRecords:
    """Makes records of a topic's schema from Arrow batches with its columns."""

    topic: str
    schema: TopicSchema
    constraints: Sequence[Constraint] = ()

    @cached_property
    def columns(self) -> pa.Schema:
        """The schema's columns, kept: who sends single records asks for them often."""
        return self.schema.columns

    @cached_property
    def record_columns(self) -> pa.Schema:
        """The stored fields of each record."""
        return self.schema.record_columns

    def normalize(self, batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
        """Exactly the schema's record columns, without copying those that fit already.

        Columns may come in any order, with ``_timestamp`` (any unit, or int64 ms), ``_headers`` and
        ``_deleted`` optional; nullable ones may be left out. Types may differ if no value changes.
        A record that deletes keeps only its key. Raises InvalidRecord: names the column, and the
        first row that is wrong.
        """
        names = batch.schema.names
        self.check_names(names)
        deleted = self._deleted(batch) if DELETED in names else None
        count = batch.num_rows
        arrays = []
        for field in self.columns:
            # Nested columns may be null there: required ones are checked by their own names.
            stored = self.record_columns.field(field.name)
            if field.name in names:
                array = self.cast(batch.column(field.name), stored)
                self._check_text(array, field.name)
            elif (default := default_of(field)) is not None:
                array = pa.repeat(default, count)
            else:
                array = pa.nulls(count, stored.type)
            if deleted is not None and field.name not in self.schema.key:
                array = pc.if_else(deleted, pa.scalar(None, stored.type), array)
            self._check_nulls(array, field, None if field.name in self.schema.key else deleted)
            self._check_times(array, field.name)
            arrays.append(array)
        arrays += self._metadata(batch, now_ms)
        if self.schema.key:
            none = pa.array(np.zeros(count, dtype=bool))
            arrays.append(none if deleted is None else deleted)
        made = pa.RecordBatch.from_arrays(arrays, schema=self.record_columns)
        self._check_constraints(made, deleted)
        return made

    def _check_constraints(self, records: pa.RecordBatch, deleted: pa.Array | None) -> None:
        """Of records that do not delete: those are their key alone."""
        rows = None
        if deleted is not None and self.constraints:
            rows = np.flatnonzero(~np.asarray(deleted))
            records = records.take(pa.array(rows))
        for constraint in self.constraints if records.num_rows else ():
            try:
                row = constraint.first_refused(records.select([*constraint.columns]))
            except pa.ArrowException as error:
                raise self.refusal(
                    f"constraint {constraint.name!r} ({constraint.text}) has no value for some "
                    f"row: {error}"
                ) from error
            if row is not None:
                values = ", ".join(
                    f"{name}{show(records.column(name), row)}" for name in constraint.columns
                )
                number = row if rows is None else int(rows[row])
                raise self.refusal(
                    f"row {number} violates constraint {constraint.name!r} ({constraint.text}): "
                    f"{values}"
                )

    def keys(self, records: pa.RecordBatch) -> pa.Array:
        """The key of each record as bytes, null for each if the topic has none."""
        return encode_keys([records.column(name) for name in self.schema.key], records.num_rows)

    def keys_alone(self, batch: pa.RecordBatch) -> pa.Array:
        """The keys of records, from a batch that may lack other columns.

        Raises InvalidRecord: no record could have such keys.
        """
        fields = [self.record_columns.field(name) for name in self.schema.key]
        arrays = [self.cast(batch.column(field.name), field) for field in fields]
        for field, array in zip(fields, arrays, strict=True):
            self._check_text(array, field.name)
            self._check_nulls(array, self.columns.field(field.name), None)
            self._check_times(array, field.name)
        return encode_keys(arrays, batch.num_rows)

    def check_names(self, names: Sequence[str]) -> None:
        """Raise InvalidRecord if a batch cannot have columns of these names."""
        columns = self.columns
        extra = [TIMESTAMP, HEADERS, PARTITION, *([DELETED] if self.schema.key else [])]
        for name in names:
            if name not in columns.names and name not in extra:
                raise self.refusal(
                    f"column {name!r} is not in its schema{self._explain(name)}; the columns are "
                    f"{', '.join(columns.names)}, and optionally {', '.join(extra)}"
                )
            if names.count(name) > 1:
                raise self.refusal(f"column {name!r} occurs {names.count(name)} times")
        for field in columns:
            absent = field.name not in names
            needed = not field.nullable and (field.name in self.schema.key or DELETED not in names)
            needed = needed and default_of(field) is None
            if absent and needed:
                raise self.refusal(f"column {field.name!r} is missing, and must not be null")

    def _explain(self, name: str) -> str:
        """The advice for a column that is not in the schema."""
        if name == DELETED:
            return ", which has no key"
        for former in reversed(self.schema.former):
            if (former.name, former.parent) == (name, 0):
                now = [field.name for field in self.columns if id_of(field) == former.id]
                return f" any more: it is called {now[0]!r}" if now else " any more"
        return ""

    def _deleted(self, batch: pa.RecordBatch) -> pa.Array:
        array = batch.column(DELETED)
        if not types.is_boolean(array.type):
            raise self.refusal(f"column {DELETED!r} is {array.type}; a boolean is needed")
        return array.fill_null(False)

    def _metadata(self, batch: pa.RecordBatch, now_ms: int) -> list[pa.Array]:
        """Times and headers, as every topic takes them."""
        given = {"value": pa.nulls(batch.num_rows, pa.binary())}
        if TIMESTAMP in batch.schema.names:
            given["timestamp"] = batch.column(TIMESTAMP)
        if HEADERS in batch.schema.names:
            given["headers"] = batch.column(HEADERS)
        try:
            made = normalize(pa.RecordBatch.from_pydict(given), now_ms=now_ms)
        except UnsupportedRecordFormat as error:
            text = str(error).replace("'timestamp'", repr(TIMESTAMP))
            raise self.refusal(text.replace("'headers'", repr(HEADERS))) from error
        return [made.column("timestamp"), made.column("headers")]

    def cast(self, array: pa.Array, field: pa.Field) -> pa.Array:
        """The values cast to a column's type, if none changes. Raises InvalidRecord."""
        return cast(array, field, self.refusal)

    def _check_nulls(self, array: pa.Array, field: pa.Field, deleted: pa.Array | None) -> None:
        rows = _find_null(array, field)
        if rows is None:
            return
        path, wrong = rows
        if deleted is not None:
            wrong = wrong & ~np.asarray(deleted)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise self.refusal(f"column {path!r} is null in row {row}, and must not be")

    def _check_text(self, array: pa.Array, name: str) -> None:
        """Arrow accepts any bytes as text, and readers then fail."""
        if _is_utf8(array):
            return
        # A gathered array has no other rows, even in its children, where a slice has them all.
        array = array.take(pa.array(np.arange(len(array))))
        if _is_utf8(array):
            return
        low, high = 0, len(array) - 1
        while low < high:
            middle = (low + high) // 2
            if _is_utf8(array.take(pa.array(np.arange(low, middle + 1)))):
                low = middle + 1
            else:
                high = middle
        raise self.refusal(f"column {name!r} has text in row {low} that is not UTF-8")

    def _check_times(self, array: pa.Array, name: str) -> None:
        """Times in milliseconds must be some in microseconds, as they are in files and keys."""
        finer = _in_microseconds(array.type)
        if finer == array.type:
            return
        try:
            array.cast(finer)
        except pa.ArrowInvalid:
            row = first_wrong(array, finer)
            raise self.refusal(
                f"column {name!r} has a time in row {row} that is too far from 1970: in "
                "microseconds it does not fit into 64 bits"
            ) from None

    def refusal(self, reason: str) -> InvalidRecord:
        """The error for a wrong value."""
        return InvalidRecord(f"topic {self.topic!r}: {reason}")


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The type with its times, nested ones too, in microseconds."""
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    fields = [child.with_type(_in_microseconds(child.type)) for child in children(kind)]
    return with_children(kind, fields)


def _is_utf8(array: pa.Array) -> bool:
    """Whether all text in an array is UTF-8."""
    try:
        if types.is_string(array.type):
            return first_not_utf8(array) is None
        if _has_text(array.type):
            array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _has_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or any(_has_text(child.type) for child in children(kind))


def _find_null(
    array: pa.Array, field: pa.Field, path: str = ""
) -> tuple[str, npt.NDArray[np.bool_]] | None:
    """The first required column with nulls, and the rows; None if there is none."""
    path = f"{path}.{field.name}" if path else field.name
    if not field.nullable and array.null_count:
        return path, np.asarray(array.is_null())
    kind = field.type
    if not types.is_nested(kind) or not _has_required(kind):
        return None
    if types.is_struct(kind):
        for number in range(kind.num_fields):
            child = kind.field(number)
            found = _find_null(pc.struct_field(array, number), child, path)
            if found is not None:
                where, rows = found
                rows &= np.asarray(array.is_valid())
                if rows.any():
                    return where, rows
        return None
    lists = pc.list_parent_indices(as_list(array))
    items = as_list(array).flatten()
    found = _find_null(items, _item_field(kind), path)
    if found is None:
        return None
    where, wrong = found
    rows = np.zeros(len(array), dtype=bool)
    rows[np.asarray(lists)[wrong]] = True
    return where, rows


def _has_required(kind: pa.DataType) -> bool:
    children = [kind.field(number) for number in range(kind.num_fields)]
    return any(not child.nullable or _has_required(child.type) for child in children)


def _item_field(kind: pa.DataType) -> pa.Field:
    if types.is_map(kind):
        return pa.field("entries", pa.struct([kind.key_field, kind.item_field]), nullable=False)
    return kind.value_field
