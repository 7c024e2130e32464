"""Values in a registry's framing as columns. What cannot be decoded is a dead letter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.errors import InvalidOption, InvalidRecord, InvalidSchema, UnknownSchema
from txnlog.schema import HEADERS, OFFSET, PARTITION, TIMESTAMP, TOPIC
from txnlog.segments.records import HEADERS_TYPE
from txnlog.values.avro_columns import MOST_SHOWN, Numbers, Problems
from txnlog.values.codecs import Codec, make_codec, parse_schema
from txnlog.values.framing import Frames, check_id_bytes
from txnlog.values.rows import BYTES_OF_FIELD, Budget, TooManyFields, check_together, width_of
from txnlog.values.schemas import (
    MOST_TOGETHER_BYTES,
    PinnableSchemas,
    RegisteredSchema,
    Schemas,
    check_schema_type,
    with_references,
)

KEY: Final = "_key"
VALUE: Final = "_value"
ERROR: Final = "_error"
_FIELDS: Final = {
    "key": (KEY, pa.binary()),
    "topic": (TOPIC, pa.string()),
    "partition": (PARTITION, pa.int32()),
    "offset": (OFFSET, pa.int64()),
    "timestamp": (TIMESTAMP, pa.timestamp("us", "UTC")),
    "headers": (HEADERS, HEADERS_TYPE),
}
"""What a record has besides its value: by its column in a scan its name and type here."""


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """Decoded values.

    ``columns`` has a row for each value, with nulls if the value was null or is a dead letter.
    ``errors`` has the reason for each dead letter, and null elsewhere.
    """

    columns: pa.RecordBatch
    errors: pa.StringArray


class ValueReader:
    """Decodes values that carry the id of their schema.

        reader = ValueReader(store.schemas, "avro", subject="orders-value")
        for batch in reader.read(store.scan("orders").to_batches()): ...

    All have the columns of one schema, the newest of a subject or the one that is asked for; those
    that were written under another one are resolved to it. As a function of one value it is a
    consumer's ``value_deserializer``: it returns a dict.

    Args:
        schemas: where schemas come from.
        value_format: 'avro', 'protobuf' or 'json'.
        subject: whose schema says which columns there are.
        version: of the subject; None: the newest.
        message: of a .proto the full name of the message whose fields are the columns; None: the
            first. Values of other messages are dead letters.
        id_bytes: how long ids are: 4, or 8 as Apicurio's serializers can write them.

    Raises:
        InvalidOption: an argument is not valid, or the subject's schema is of another format.
        InvalidSchema: the schema cannot be made columns.
        UnknownSchema: there is no such subject or version.
        StorageError: the registry cannot be reached.
    """

    def __init__(
        self,
        schemas: Schemas,
        value_format: str,
        *,
        subject: str,
        version: int | None = None,
        message: str | None = None,
        id_bytes: int = 4,
    ) -> None:
        self._schemas = schemas
        self._type = check_schema_type(value_format)
        self._id_bytes = check_id_bytes(id_bytes)
        self._message = message
        self.registered = schemas.version(subject, version)
        """The schema whose columns are read."""
        if self.registered.schema_type != self._type:
            raise InvalidOption(
                f"the schema of {subject!r:.200} is {self.registered.schema_type}, not {self._type}"
            )
        self._reader = make_codec(schemas, self.registered, message)
        self._forget()
        for name in self.schema.names:
            if name.casefold() in _RESERVED:
                raise InvalidSchema(
                    f"a field of {subject!r:.200} is called {name!r:.60}, as a part of each record"
                )

    @cached_property
    def _width(self) -> int:
        return width_of(pa.struct([*self.schema]))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the values, each of which may be null where a value is a dead letter."""
        return pa.schema([field.with_nullable(True) for field in self._reader.columns])

    @property
    def schemas(self) -> Schemas:
        """The source of schemas."""
        return self._schemas

    def pinned(self) -> ValueReader | None:
        """This reader as of now: an id that is unknown stays unknown to it, in each copy of it.

        None: its schemas come from where that cannot be had, such as a registry by HTTP.
        """
        if not isinstance(self._schemas, PinnableSchemas):
            return None
        found = ValueReader.__new__(ValueReader)
        found.__setstate__({**self.__getstate__(), "schemas": self._schemas.pinned()})
        return found

    def decode(self, values: pa.Array | pa.ChunkedArray) -> DecodedValues:
        """Decode values, which may be null.

        An unknown id, and bytes that are no value of their schema, are errors of these values.

        Raises:
            StorageError: the registry cannot be reached: nothing is known about the values then.
            InvalidOption: these are no bytes.
            InvalidRecord: they would become columns of gigabytes, or more than fits in memory;
                fewer at a time may not.
        """
        try:
            return self._decode(values)
        except MemoryError as error:
            raise TooManyFields(f"{len(values)} values take more memory than there is") from error

    def _decode(self, values: pa.Array | pa.ChunkedArray) -> DecodedValues:
        count = len(values)
        check_together(count, self._width)
        frames = Frames(_as_binary(values), self._id_bytes)
        budget = Budget()
        reasons = frames.problems
        made: list[pa.Array] = []
        rows: list[Any] = []
        schemas = self._schemas
        for schema_id, chosen in frames.by_id():
            mine = frames.rows[chosen]
            problems = Problems()
            starts, ends = frames.starts[chosen], frames.ends[chosen]
            try:
                codec = self._codec_of(schema_id, schemas)
                found = codec.decode(frames.data, starts, ends, problems, self._reader)
            except UnknownSchema as error:
                reason = f"schema {schema_id} is unknown: {error}"[:MOST_SHOWN]
                reasons.update(dict.fromkeys(mine.tolist(), reason))
                if isinstance(schemas, PinnableSchemas):
                    # Where one is unknown many may be: of these no more requests are made.
                    schemas = schemas.pinned()
                continue
            except InvalidSchema as error:
                reason = f"schema {schema_id} is not readable: {error}"[:MOST_SHOWN]
                reasons.update(dict.fromkeys(mine.tolist(), reason))
                continue
            for number, reason in problems.reasons.items():
                reasons[int(mine[number])] = f"schema {schema_id}: {reason}"[:MOST_SHOWN]
            if count > 1:
                budget.spend(max(0, found.nbytes - int((ends - starts).sum())) // BYTES_OF_FIELD)
            made.append(found)
            rows.append(mine)
        columns = self._in_rows(made, rows, count, reasons)
        return DecodedValues(columns, _texts_of(reasons, count))

    def _in_rows(
        self, made: list[pa.Array], rows: list[Any], count: int, reasons: dict[int, str]
    ) -> pa.RecordBatch:
        if not self.schema.names:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        if len(made) == 1 and len(made[0]) == count and not reasons:
            return pa.RecordBatch.from_arrays(made[0].flatten(), schema=self.schema)
        where = np.full(count, -1, np.int64)
        if rows:
            where[np.concatenate(rows)] = np.arange(sum(map(len, rows)))
        if reasons:
            where[[*reasons]] = -1
        indices = pa.array(np.maximum(where, 0), pa.int64(), mask=where < 0)
        parts = [array.flatten() for array in made]
        columns = [
            pa.concat_arrays([part[number] for part in parts]).take(indices)
            if parts and any(len(part[number]) for part in parts)
            else pa.nulls(count, field.type)
            for number, field in enumerate(self.schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Records of a scan, with the columns of their values: see :meth:`batch_schema`."""
        return (found for batch in batches for _, found in self.read_pieces(batch))

    def read_pieces(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """One batch of records, in as many pieces as memory asks for, each beside its columns."""
        found = None
        try:
            found = self.read_batch(batch)
        except TooManyFields:
            if len(batch) < 2:
                raise
        if found is not None:
            yield batch, found
            return
        # Not above: while the error is handled, it holds all that there was when it was raised.
        half = len(batch) // 2
        yield from self.read_pieces(batch.slice(0, half))
        yield from self.read_pieces(batch.slice(half))

    def read_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One batch of records; see :meth:`batch_schema`. Raises InvalidRecord: see `decode`."""
        decoded = self.decode(batch.column("value"))
        left = pa.array(decoded.errors.is_valid())
        values = _as_binary(batch.column("value"))
        columns = [*decoded.columns.columns]
        columns += [batch.column(name).cast(_FIELDS[name][1]) for name in _others(batch.schema)]
        columns += [_where(left, values), decoded.errors]
        return pa.RecordBatch.from_arrays(columns, schema=self.batch_schema(batch.schema))

    def batch_schema(self, records: pa.Schema) -> pa.Schema:
        """The columns of records whose values are decoded.

        Those of the values; ``_key``, ``_topic``, ``_partition``, ``_offset``, ``_timestamp`` and
        ``_headers``, as far as the records have them; for dead letters ``_value``, the bytes as
        they are, and ``_error``, the reason. Of a tombstone all but the record's own are null.

        Raises InvalidOption: the records have no values.
        """
        if "value" not in records.names:
            raise InvalidOption("records without their values cannot be decoded: read `value` too")
        more = [_FIELDS[name] for name in _others(records)]
        more += [(VALUE, pa.binary()), (ERROR, pa.string())]
        return pa.schema([*self.schema, *(pa.field(name, kind) for name, kind in more)])

    def __call__(self, value: bytes) -> dict[str, Any]:
        """One value. Raises InvalidRecord: it is a dead letter."""
        decoded = self.decode(pa.array([value], pa.binary()))
        reason = decoded.errors[0].as_py()
        if reason is not None:
            raise InvalidRecord(f"a value cannot be decoded: {reason}")
        try:
            found: dict[str, Any] = decoded.columns.to_pylist()[0]
        except (OverflowError, ValueError) as error:
            raise InvalidRecord(
                f"a value has a time that Python has not ({error}); decode() gives it as Arrow"
            ) from error
        return found

    # -- schemas ---------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._codecs: dict[int, Codec] = {self.registered.id: self._reader}
        self._unreadable: dict[RegisteredSchema, str] = {}
        self._size = 0

    def _codec_of(self, schema_id: int, schemas: Schemas) -> Codec:
        """How values of an id are decoded. Readable ones are asked for once, others each time.

        Nothing is said of an id but by its schema: which others came before, and when, is no fact
        about its values. Raises UnknownSchema, InvalidSchema.
        """
        codec = self._codecs.get(schema_id)
        if codec is not None:
            return codec
        found = schemas.by_id(schema_id)
        if found.schema_type != self._type:
            raise InvalidSchema(f"it is {found.schema_type}, not {self._type}")
        if found in self._unreadable:
            raise InvalidSchema(self._unreadable[found])
        references = with_references(schemas, found)
        size = len(found.text) + sum(len(text) for _, text in references)
        if self._size + size > MOST_TOGETHER_BYTES:
            self._forget()
        self._size += size
        try:
            codec = parse_schema(found.schema_type, found.text, references)
        except InvalidSchema as error:
            self._unreadable[found] = str(error)[:MOST_SHOWN]
            raise
        self._codecs[schema_id] = codec
        return codec

    def __getstate__(self) -> dict[str, Any]:
        # What is made of schemas is made again where it arrives.
        return {
            "schemas": self._schemas,
            "value_format": self._type,
            "id_bytes": self._id_bytes,
            "message": self._message,
            "registered": self.registered,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._schemas = state["schemas"]
        self._type = state["value_format"]
        self._id_bytes = state["id_bytes"]
        self._message = state["message"]
        self.registered = state["registered"]
        self._reader = make_codec(self._schemas, self.registered, self._message)
        self._forget()


_RESERVED: Final = {*(name for name, _ in _FIELDS.values()), VALUE, ERROR}


def _others(records: pa.Schema) -> Sequence[str]:
    """The columns of records besides the value, in the order of their names here."""
    return [name for name in _FIELDS if name in records.names]


def _as_binary(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if values.type == pa.binary():
        return values
    try:
        return values.cast(pa.binary())
    except pa.ArrowException as error:
        raise InvalidOption(f"values are bytes, not {values.type}") from error


def _where(chosen: pa.Array, values: pa.Array) -> pa.Array:
    """The values where it is true, and null elsewhere: mostly all are."""
    if chosen.true_count == 0:
        return pa.nulls(len(values), pa.binary())

    return pc.if_else(chosen, values, None)


def _texts_of(reasons: dict[int, str], count: int) -> pa.StringArray:
    if not reasons:
        return pa.nulls(count, pa.string())
    rows = np.array([*reasons], np.int64)
    where = np.full(count, -1, np.int64)
    where[rows] = np.arange(len(rows))
    texts = pa.array([*reasons.values()], pa.string())
    return texts.take(pa.array(np.maximum(where, 0), pa.int64(), mask=where < 0))


def decode_each(
    schemas: Schemas, values: pa.Array, is_over: Callable[[], bool]
) -> Iterator[tuple[int, Numbers, pa.RecordBatch]]:
    """The values that can be decoded: an id, their numbers, and a row for each.

    Of a .proto each message has columns of its own. Values that cannot be decoded are left out: one
    may begin as if it carried an id. Looking for unknown ids ends with the first, and all ends at
    the first id for which it ``is_over``: the text of each .proto costs a compiler's process.

    Raises StorageError: the schemas cannot be read.
    """
    frames = Frames(values, 4)
    for schema_id, chosen in frames.by_id():
        if is_over():
            return
        try:
            codec = make_codec(schemas, schemas.by_id(schema_id))
        except UnknownSchema:
            return
        except (InvalidSchema, InvalidOption):
            continue
        for one, numbers in _by_message(codec, frames, chosen):
            with suppress(InvalidSchema, TooManyFields):
                good, columns = _decode(one, frames, numbers)
                if len(good):
                    yield schema_id, frames.rows[good], columns


def _by_message(codec: Codec, frames: Frames, chosen: Numbers) -> Iterator[tuple[Codec, Numbers]]:
    """The values of one schema, each by the codec that reads all of its fields."""
    from txnlog.values.protobuf import ProtobufCodec

    if not isinstance(codec, ProtobufCodec):
        yield codec, chosen
        return
    for one, numbers in codec.by_message(frames.data, frames.starts[chosen], frames.ends[chosen]):
        yield one, chosen[numbers]


def _decode(codec: Codec, frames: Frames, chosen: Numbers) -> tuple[Numbers, pa.RecordBatch]:
    """Those of the values that can be decoded, and their columns."""
    problems = Problems()
    starts, ends = frames.starts[chosen], frames.ends[chosen]
    found = codec.decode(frames.data, starts, ends, problems, codec)
    good = np.array([n for n in range(len(chosen)) if n not in problems.reasons], np.int64)
    return chosen[good], pa.RecordBatch.from_struct_array(found.take(pa.array(good)))
