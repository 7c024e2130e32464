"""The schema of records, and the Arrow input that is accepted. Knows no bytes and no files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.segments.arrays import arrow_of, numbers_of
from txnlog.segments.errors import UnsupportedRecordFormat

TIMESTAMP_TYPE: Final = pa.timestamp("ms", tz="UTC")
CONVERSION_ERRORS: Final = (
    *(ValueError, TypeError, NotImplementedError, OverflowError),
    *(pa.ArrowCapacityError, pa.ArrowIndexError),
)
"""Arrow's errors for values that do not fit a type; never lack of memory."""
HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", TIMESTAMP_TYPE),
        ("headers", HEADERS_TYPE),
    ]
)

TIMESTAMP_COLUMNS: Final = ("_timestamp", "timestamp")
"""The columns with the times of records: the first in typed topics, which may have a column of the
second name.
"""

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

MAX_TIMESTAMP_MS: Final = ((1 << 63) - 1) // 1000
"""Some 292,000 years."""

# The kernel itself, without bounds: for small groups Array.take costs half as much again.
_ARRAY_TAKE = pc.get_function("array_take")
_UNCHECKED = pc.TakeOptions(boundscheck=False)

_MAX_OFFSET = (1 << 31) - 1

_OFFSET_BYTES = 4  # what Arrow spends on one value of variable length besides its bytes

EMPTY_RECORD_BYTES: Final = 8 + 2 * _OFFSET_BYTES + _OFFSET_BYTES
"""A record of nothing but its timestamp: key and value are empty, and so is the list of headers."""


MakeColumns: TypeAlias = Callable[[pa.RecordBatch, int], Iterator[tuple[range, pa.RecordBatch]]]
"""Makes columns of stored ones, of so many rows: in pieces, each with its places among them."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodedRecords:
    """Records of one batch; ``offset_deltas`` (int32, ascending) is None if offsets are dense.

    With ``make`` these are stored columns, of which it makes those that were asked for.
    """

    records: pa.RecordBatch
    offset_deltas: Int32Array | None
    make: MakeColumns | None = None


def normalize(batch: pa.RecordBatch, *, now_ms: int) -> pa.RecordBatch:
    """Cast ``batch`` to exactly RECORD_SCHEMA, zero-copy where it fits already.

    Keys and values may have any string or binary type, dictionary-encoded too; timestamps any
    unit and zone (finer units are cut to ms, no zone means UTC) or int64 ms; headers are a list of
    (key, value) structs or a map. Only ``value`` must be there. A missing or null timestamp
    becomes ``now_ms``; missing or null headers become an empty list, because Kafka's format has no
    null headers.

    Raises UnsupportedRecordFormat naming the column that does not fit.
    """
    names = batch.schema.names
    for column in names:
        if column not in RECORD_SCHEMA.names:
            expected = ", ".join(RECORD_SCHEMA.names)
            raise UnsupportedRecordFormat(
                f"column {column!r} is not part of a record; the columns are {expected}"
            )
        if names.count(column) > 1:
            raise UnsupportedRecordFormat(f"column {column!r} is there {names.count(column)} times")
    if "value" not in names:
        raise UnsupportedRecordFormat(f"column 'value' is missing; there is {', '.join(names)}")
    count = batch.num_rows
    columns = [
        _normalize_binary("key", batch.column("key"))
        if "key" in names
        else pa.nulls(count, pa.binary()),
        _normalize_binary("value", batch.column("value")),
        _normalize_timestamps(batch.column("timestamp"), now_ms)
        if "timestamp" in names
        else constant_timestamps(now_ms, count),
        _normalize_headers(batch.column("headers")) if "headers" in names else empty_headers(count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def constant_timestamps(timestamp_ms: int, count: int) -> pa.Array:
    """``count`` times the same timestamp."""
    values = np.full(count, timestamp_ms, dtype=np.int64)
    return pa.Array.from_buffers(TIMESTAMP_TYPE, count, [None, pa.py_buffer(values)])


def empty_headers(count: int) -> pa.Array:
    """``count`` times no headers."""
    offsets = arrow_of(np.zeros(count + 1, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.nulls(0, HEADERS_TYPE.value_type))


def default_column(name: str, timestamp_ms: int, count: int) -> pa.Array | None:
    """The default of a column that a batch leaves out; None for a name without one."""
    if name == "timestamp":
        return constant_timestamps(timestamp_ms, count)
    if name == "headers":
        return empty_headers(count)
    if name in RECORD_SCHEMA.names:
        return pa.nulls(count, RECORD_SCHEMA.field(name).type)
    return None


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the rows of all, of which there is at least one; a single one as it is."""
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch


def joined_batches(batches: Iterable[pa.RecordBatch], least_bytes: int) -> Iterator[pa.Table]:
    """Join batches into tables of at least ``least_bytes``; the last one may be smaller."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        held.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= least_bytes:
            yield pa.Table.from_batches(held)
            held, size_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def take_groups(records: pa.RecordBatch, groups: Sequence[Int32Array]) -> Iterator[pa.RecordBatch]:
    """The rows of each group of row numbers, which must exist; ``records`` are of any topic.

    Timestamps that are all equal and headers that are all empty, as they mostly are, are created
    instead of gathered: for rows of 100 bytes that is half of the work.
    """
    longest = max(len(rows) for rows in groups)
    alike: dict[str, pa.Array] = {}
    times = timestamps_ms(records)
    if (times == times[0]).all():
        alike[timestamp_column(records)] = constant_timestamps(int(times[0]), longest)
    headers = "_headers" if timestamp_column(records) == TIMESTAMP_COLUMNS[0] else "headers"
    offsets = records.column(headers).offsets
    if offsets[0] == offsets[-1]:
        alike[headers] = empty_headers(longest)
    for rows in groups:
        indices = arrow_of(rows)
        arrays = [
            alike[name].slice(0, len(rows))
            if name in alike
            else _ARRAY_TAKE.call([column, indices], _UNCHECKED)
            for name, column in zip(records.schema.names, records.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=records.schema)


def time_column(names: Sequence[str]) -> str | None:
    """Which of these columns holds the records' times, if any does."""
    return next((name for name in TIMESTAMP_COLUMNS if name in names), None)


def timestamp_column(batch: pa.RecordBatch) -> str:
    """The name of the column that holds the records' times."""
    return next(name for name in TIMESTAMP_COLUMNS if name in batch.schema.names)


def timestamps_ms(batch: pa.RecordBatch) -> Int64Array:
    """The timestamp column as int64 milliseconds, without copying. It must have no nulls."""
    column = batch.column(timestamp_column(batch))
    return numbers_of(column.view(pa.int64()))


def split_large(batch: pa.RecordBatch, max_bytes: int) -> list[pa.RecordBatch]:
    """Slices of a batch of any columns, in order, each of ``max_bytes`` or of one larger row.

    That is measured as RECORD_SCHEMA would have it, whose columns end at 2 GiB: what types with
    dictionaries, views or 64-bit offsets hold can be many times that.
    """
    if batch.nbytes <= max_bytes and not any(_may_repeat(field.type) for field in batch.schema):
        return [_from_the_start(batch)]
    ends = np.cumsum(record_sizes(batch))
    slices: list[pa.RecordBatch] = []
    row = 0
    while row < batch.num_rows:
        taken = int(ends[row - 1]) if row else 0
        stop = max(int(np.searchsorted(ends, taken + max_bytes, side="right")), row + 1)
        slices.append(_from_the_start(batch.slice(row, stop - row)))
        row = stop
    return slices or [batch]


def _from_the_start(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows; values beyond the first 2 GiB of an array are copied out of it.

    Arrow makes no others of 64-bit offsets with 32 bits, however few values a slice has.
    """
    if any(_ends_beyond(column) for column in batch.columns):
        return pa.concat_batches([batch])  # which copies one batch too
    return batch


def _ends_beyond(array: pa.Array) -> bool:
    kind = array.type
    if pa.types.is_struct(kind):
        return any(_ends_beyond(array.field(number)) for number in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _last_offset(array) > _MAX_OFFSET or _ends_beyond(array.values)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _last_offset(array) > _MAX_OFFSET
    return False


def _last_offset(array: pa.Array) -> int:
    """The position after an array's last value, in the child or buffer that holds its values."""
    data = array.buffers()[1]
    width = np.int32 if pa.types.is_list(array.type) else np.int64
    return (
        0
        if data is None or not len(array)
        else int(np.frombuffer(data, width)[array.offset + len(array)])
    )


def _may_repeat(kind: pa.DataType) -> bool:
    """Whether several values of this type may share the same bytes."""
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        return True
    if pa.types.is_dictionary(kind):
        return True
    return any(_may_repeat(kind.field(child).type) for child in range(kind.num_fields))


def record_sizes(batch: pa.RecordBatch) -> Int64Array:
    """Bytes that each record takes uncompressed: int64, one for each row.

    A record's bytes are those of its values, plus 4 for each value of variable length (20 for an
    empty record of RECORD_SCHEMA). Any schema is measured; slices count only their own rows.
    """
    sizes = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        sizes += _measure_values(column)
    return sizes


def record_size(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """The result of :func:`record_sizes` for one record of RECORD_SCHEMA, before it is in Arrow."""
    names_and_values = sum(
        len(name.encode()) + len(content or b"") + 2 * _OFFSET_BYTES for name, content in headers
    )
    return EMPTY_RECORD_BYTES + len(key or b"") + len(value or b"") + names_and_values


def _measure_values(array: pa.Array) -> Int64Array:
    kind = array.type
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        return _measure_views(array) + _OFFSET_BYTES
    if is_text(kind) or is_bytes(kind):
        lengths = pc.binary_length(array)
        if lengths.null_count:
            lengths = pc.fill_null(lengths, 0)
        sizes: Int64Array = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        sizes += _OFFSET_BYTES
        return sizes
    if pa.types.is_dictionary(kind):
        sizes = np.append(_measure_values(array.dictionary), _OFFSET_BYTES)
        # A null has no place in the dictionary: it takes the one that is added here.
        places = array.indices.cast(pa.int64()).fill_null(len(array.dictionary))
        chosen: Int64Array = sizes[places.to_numpy()]
        return chosen
    if pa.types.is_struct(kind):
        sizes = np.zeros(len(array), dtype=np.int64)
        for child in array.flatten():
            sizes += _measure_values(child)
        return sizes
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _measure_lists(array)
    # Fixed widths are exact; for anything rarer the mean is good enough to bound memory.
    mean = -(-array.nbytes // len(array)) if len(array) else 0
    return np.full(len(array), mean, dtype=np.int64)


def _measure_views(array: pa.Array) -> Int64Array:
    # There is no kernel for it. A view takes 16 bytes, of which the first four are the length.
    words = np.frombuffer(array.buffers()[1], dtype="<i4")
    lengths = words[::4][array.offset : array.offset + len(array)].astype(np.int64)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return lengths


def _measure_lists(array: pa.Array) -> Int64Array:
    offsets = array.offsets.to_numpy().astype(np.int64)
    start, stop = int(offsets[0]), int(offsets[-1])
    if start == stop:  # no item anywhere: the usual case for headers
        return np.full(len(array), _OFFSET_BYTES, dtype=np.int64)
    items = array.keys if pa.types.is_map(array.type) else array.values
    totals = np.zeros(stop - start + 1, dtype=np.int64)
    np.cumsum(_measure_values(items.slice(start, stop - start)), out=totals[1:])
    if pa.types.is_map(array.type):
        both = np.zeros_like(totals)
        np.cumsum(_measure_values(array.items.slice(start, stop - start)), out=both[1:])
        totals += both
    ends: Int64Array = totals[offsets - start]
    return np.diff(ends) + _OFFSET_BYTES


def is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _cast(name: str, array: pa.Array, target: pa.DataType, *, safe: bool = True) -> pa.Array:
    try:
        return array.cast(target, safe=safe)
    except CONVERSION_ERRORS as error:
        raise UnsupportedRecordFormat(
            f"column {name!r} of type {array.type} cannot be made {target}: {error}"
        ) from error


def _normalize_binary(name: str, array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_binary(kind):
        return array
    value_type = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (is_text(value_type) or is_bytes(value_type) or pa.types.is_null(value_type)):
        raise UnsupportedRecordFormat(
            f"column {name!r} is {kind}; a string or binary type is needed: encode it first"
        )
    return _cast(name, array, pa.binary())


def _normalize_timestamps(array: pa.Array, now_ms: int) -> pa.Array:
    kind = array.type
    if pa.types.is_null(kind):
        return constant_timestamps(now_ms, len(array))
    if pa.types.is_timestamp(kind):
        # From coarser units a cast can overflow and must say so; from finer ones it only cuts.
        array = _cast("timestamp", array, TIMESTAMP_TYPE, safe=kind.unit == "s")
    elif pa.types.is_int64(kind):
        array = array.view(TIMESTAMP_TYPE)
    else:
        raise UnsupportedRecordFormat(
            f"column 'timestamp' is {kind}; a timestamp or int64 milliseconds is needed"
        )
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(now_ms, TIMESTAMP_TYPE))
    times = array.view(pa.int64()).to_numpy()
    if not are_representable(times):
        raise UnsupportedRecordFormat(
            f"column 'timestamp' has {int(times[np.argmax(np.abs(times))])} ms since the epoch, "
            "which no calendar has: give milliseconds, not finer units"
        )
    return array


def are_representable(times_ms: Int64Array) -> bool:
    """Whether readers can show these times, which they do in microseconds."""
    if len(times_ms) == 0:
        return True
    return int(times_ms.min()) >= -MAX_TIMESTAMP_MS and int(times_ms.max()) <= MAX_TIMESTAMP_MS


def _normalize_headers(array: pa.Array) -> pa.Array:
    if pa.types.is_null(array.type):
        return empty_headers(len(array))
    if array.type != HEADERS_TYPE:
        _check_headers_type(array.type)
        array = _cast("headers", array, HEADERS_TYPE)
    if array.null_count:
        array = pc.fill_null(array, pa.scalar([], HEADERS_TYPE))
    items = array.flatten()
    keys = items.field("key")
    if items.null_count or keys.null_count:
        raise UnsupportedRecordFormat("column 'headers' has a header whose key is null")
    wrong = first_not_utf8(keys)
    if wrong is not None:
        row = pc.list_parent_indices(array)[wrong].as_py()
        raise UnsupportedRecordFormat(
            f"column 'headers' has a header in row {row} whose key is not UTF-8: "
            f"{keys[wrong].as_buffer().to_pybytes()!r:.60}"
        )
    return array


def first_not_utf8(texts: pa.Array) -> int | None:
    """The first text that is not UTF-8, None if each is: Arrow takes any bytes as text.

    ``texts`` are of Arrow's type string. The check copies nothing.
    """
    content = texts.view(pa.binary())
    low, high = 0, len(content)
    try:
        content.cast(pa.string())
    except pa.ArrowInvalid:
        while low < high:
            middle = (low + high) // 2
            try:
                content.slice(low, middle + 1 - low).cast(pa.string())
                low = middle + 1
            except pa.ArrowInvalid:
                high = middle
        return low
    return None


def _check_headers_type(kind: pa.DataType) -> None:
    if pa.types.is_map(kind):
        return
    # Views of lists are not among them: Arrow's cast of these leaves out the last offset.
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_list and pa.types.is_struct(kind.value_type):
        item = kind.value_type
        if sorted(item.field(number).name for number in range(item.num_fields)) == ["key", "value"]:
            return
    raise UnsupportedRecordFormat(
        f"column 'headers' is {kind}; a list of structs with the fields key and value is needed"
    )


def choose_columns(columns: Sequence[str] | None) -> list[str]:
    """The names of the columns to decode; None means all. Raises UnsupportedRecordFormat."""
    wanted = RECORD_SCHEMA.names if columns is None else list(columns)
    for name in wanted:
        if name not in RECORD_SCHEMA.names:
            raise UnsupportedRecordFormat(
                f"there is no column {name!r}; the batch has {RECORD_SCHEMA.names}"
            )
    return wanted


def schema_of(wanted: Sequence[str]) -> pa.Schema:
    """The part of RECORD_SCHEMA with these columns, in this order."""
    return pa.schema([RECORD_SCHEMA.field(name) for name in wanted])


def decode_wanted(
    wanted: Sequence[str], decoders: Mapping[str, Callable[[], pa.Array]]
) -> pa.RecordBatch:
    """The wanted columns; ``decoders`` has a function for each column of RECORD_SCHEMA."""
    arrays = [decoders[name]() for name in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(wanted))
