"""The metadata in a Parquet footer, read and checked before C++ sees it.

Arrow's C++ ends the process, instead of raising, on some contradictions between a footer's parts,
and takes numbers in it for true. So here all of it is read that says where bytes lie, how many
values there are, and of which types; and what is optional must fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from txnlog.segments.parquet.compact_values import (
    BINARY,
    BOOLEAN,
    BYTE,
    I16,
    I32,
    I64,
    REFUSED,
    CompactReader,
    Fields,
    list_of,
    read_list_head,
    read_struct,
    read_value,
    skip_field,
    struct_of,
)

MAX_DEPTH: Final = 64
"""The most levels of columns within columns; each has up to three elements in the schema."""
MAX_ELEMENTS: Final = 1 << 16
"""The most columns, nested ones and their groups included."""
_MAX_PAIRS: Final = 1 << 12
_MAX_KINDS: Final = 64
"""The most encodings, or kinds of pages, that one chunk may list."""
_CHUNKS: Final = 1 << 18
_CHUNK_FILE_BYTES: Final = 1 << 10
"""So many chunks may any file have, and one more for so many of its bytes: each takes as much."""

_NONE: Final = struct_of({})
_UNIT: Final = struct_of({1: _NONE, 2: _NONE, 3: _NONE})
_TIME: Final = struct_of({1: BOOLEAN, 2: _UNIT})
_LOGICAL: Final = struct_of(
    {
        **dict.fromkeys((1, 2, 3, 4, 6, 11, 12, 13, 14, 15), _NONE),
        5: struct_of({1: I32, 2: I32}),
        7: _TIME,
        8: _TIME,
        10: struct_of({1: BYTE, 2: BOOLEAN}),
        **dict.fromkeys((16, 17, 18), REFUSED),  # VARIANT, GEOMETRY, GEOGRAPHY
    }
)
_ELEMENT: Final = struct_of({
    **dict.fromkeys((1, 2, 3, 5, 6, 7, 8, 9), I32), 4: BINARY, 10: _LOGICAL
})  # fmt: skip
_PAIR: Final = struct_of({1: BINARY, 2: BINARY})
_BOUNDS: Final = (1, 2, 5, 6)
STATISTICS: Final = struct_of({
    **dict.fromkeys(_BOUNDS, BINARY), 3: I64, 4: I64, 7: BOOLEAN, 8: BOOLEAN
})  # fmt: skip
_COUNTS: Final = list_of(1 << 10, I64)
_META_DATA: Final = struct_of({
    1: I32,
    2: list_of(_MAX_KINDS, I32),
    3: list_of(3 * MAX_DEPTH, BINARY),
    4: I32,
    **dict.fromkeys((5, 6, 7, 9, 10, 11), I64),
    8: list_of(_MAX_KINDS, _PAIR),
    12: STATISTICS,
    13: list_of(_MAX_KINDS, struct_of({1: I32, 2: I32, 3: I32})),
    16: struct_of({1: I64, 2: _COUNTS, 3: _COUNTS}),
    17: REFUSED,  # geospatial statistics
})  # fmt: skip
_CHUNK: Final = struct_of({
    1: BINARY,
    2: I64,
    3: _META_DATA,
    **dict.fromkeys((4, 6), I64),
    **dict.fromkeys((5, 7), I32),
    **dict.fromkeys((8, 9), REFUSED),  # encrypted columns
})  # fmt: skip
_SORTING: Final = list_of(MAX_ELEMENTS, struct_of({1: I32, 2: BOOLEAN, 3: BOOLEAN}))
_GROUP: Final = {2: I64, 3: I64, 4: _SORTING, 5: I64, 6: I64, 7: I16}
_ORDER: Final = struct_of({1: _NONE})
_FILE: Final = {
    1: I32,
    2: list_of(MAX_ELEMENTS, _ELEMENT),
    3: I64,
    5: list_of(_MAX_PAIRS, _PAIR),
    6: BINARY,
    7: list_of(MAX_ELEMENTS, _ORDER),
    **dict.fromkeys((8, 9), REFUSED),  # encrypted columns
}

_SCHEMA, _ROW_GROUPS, _CHUNKS_FIELD = 2, 4, 1
_LIST: Final = 9
_VERSIONS: Final = (1, 2)
_MAGIC: Final = b"PAR1"

# Numbers of types, codecs and encodings in the format.
_BOOLEAN, _INT32, _INT64, _INT96, _FLOAT, _DOUBLE, BYTE_ARRAY, _FIXED = range(8)
_WIDTHS: Final = {_BOOLEAN: 0, _INT32: 4, _INT64: 8, _INT96: 12, _FLOAT: 4, _DOUBLE: 8}
_BOUND_WIDTHS: Final = {**_WIDTHS, _BOOLEAN: 1}
_CONVERTED_WIDTHS: Final[Mapping[int, int | None]] = {5: 16, 11: 1, 12: 2, 15: 1, 16: 2}
"""Of decimals and short integers, by their number as converted types: as Arrow has them."""
_OPTIONAL, _REPEATED = 1, 2
CODECS: Final = {0: None, 1: "snappy", 2: "gzip", 6: "zstd", 7: "lz4_raw"}
"""Arrow's names of the codecs that segments have, by their numbers."""
PLAIN: Final = 0
DICTIONARY_ENCODINGS: Final = frozenset({2, 8})
ENCODINGS: Final = frozenset({PLAIN, 3, 4, *DICTIONARY_ENCODINGS})
"""Those that segments have, of levels too. In others values may be made of earlier ones."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A Parquet column: its path, type, and the most definition and repetition levels.

    ``length`` is that of a value of fixed length.

    ``width`` are the bytes of a value in memory, None if they differ.
    """

    path: tuple[bytes, ...]
    kind: int
    width: int | None
    length: int | None
    max_definition: int
    max_repetition: int

    @property
    def is_nested(self) -> bool:
        """Whether there may be more values than rows, or fewer."""
        return self.max_repetition > 0


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The values of one Parquet column in a row group: bytes [position, position + size_bytes).

    ``least`` and ``largest`` are the bounds as stored, None: unknown. ``offset_index`` and
    ``column_index`` are where the page index says where its pages are, and their bounds; not
    checked, and empty if there is none.
    """

    leaf: Leaf
    codec: int
    value_count: int
    position: int
    size_bytes: int
    uncompressed_bytes: int
    has_dictionary: bool
    least: bytes | None
    largest: bytes | None
    offset_index: range = range(0)
    column_index: range = range(0)


@dataclass(frozen=True, slots=True)
class RowGroupMetadata:
    """The chunks of a row group, in the order of the leaves."""

    row_count: int
    uncompressed_bytes: int
    chunks: tuple[ColumnChunk, ...]


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """The content of a footer; ``schema`` are the bytes of its list of columns."""

    leaves: tuple[Leaf, ...]
    groups: tuple[RowGroupMetadata, ...]
    pairs: Mapping[bytes, bytes]
    schema: bytes


def read_file_metadata(footer: bytes, position: int) -> FileMetadata:
    """Read and check a footer, without its length and the magic; it begins at ``position``.

    Raises ValueError: it is malformed, contradicts itself, or has what no segment has.
    """
    try:
        return _Reading(footer, position).read()
    except (IndexError, OverflowError):
        raise ValueError("it ends within a value") from None
    except KeyError as error:
        raise ValueError(f"field {error} is missing") from None


class _Reading:
    """The reading of one footer: its schema first, by which row groups are checked."""

    def __init__(self, footer: bytes, position: int) -> None:
        self._footer = footer
        self._position = position
        self._leaves: tuple[Leaf, ...] = ()
        self._most_chunks = _CHUNKS + position // _CHUNK_FILE_BYTES

    def read(self) -> FileMetadata:
        reader = CompactReader(self._footer)
        found: dict[int, Any] = {}
        groups: tuple[RowGroupMetadata, ...] = ()
        schema = b""
        for field, kind in reader.fields():
            start = reader.at
            if field in found or (field == _ROW_GROUPS and _SCHEMA not in found):
                raise ValueError(f"field {field} is there twice, or too early")
            if field == _ROW_GROUPS and kind == _LIST:
                found[field] = groups = self._read_groups(reader)
            else:
                _read_field(reader, field, kind, _FILE, found)
            if field == _SCHEMA:
                self._leaves = tuple(_leaves(found[_SCHEMA]))
                schema = self._footer[start : reader.at]
        if reader.at != len(self._footer):
            raise ValueError(f"{len(self._footer) - reader.at} bytes come after it")
        if found[3] != sum(group.row_count for group in groups):
            raise ValueError(f"its row groups do not have its {found[3]} rows")
        if len(found.get(7, self._leaves)) != len(self._leaves):
            raise ValueError("it does not have one order for each column")
        if found[1] not in _VERSIONS or _ROW_GROUPS not in found:
            raise ValueError(f"its version is {found[1]}, or it has no row groups")
        pairs = {pair[1]: pair.get(2, b"") for pair in found.get(5, [])}
        if len(pairs) < len(found.get(5, [])):
            raise ValueError("it has two values for one key")
        return FileMetadata(self._leaves, groups, pairs, schema)

    def _read_groups(self, reader: CompactReader) -> tuple[RowGroupMetadata, ...]:
        count, reader.at = read_list_head(
            reader.data, reader.at, self._most_chunks // len(self._leaves), struct_of({})
        )
        return tuple(self._read_group(reader) for _ in range(count))

    def _read_group(self, reader: CompactReader) -> RowGroupMetadata:
        found: dict[int, Any] = {}
        for field, kind in reader.fields():
            if field in found:
                raise ValueError(f"field {field} of a row group is there twice")
            if field == _CHUNKS_FIELD and kind == _LIST:
                found[field] = self._read_chunks(reader)
            else:
                _read_field(reader, field, kind, _GROUP, found)
        chunks, rows = found[1], found[3]
        for chunk in chunks:
            values = chunk.value_count
            if not (values >= rows if chunk.leaf.is_nested else values == rows):
                raise ValueError(f"{values} values are claimed for {rows} rows")
        if rows < 0 or found[2] < 0:
            raise ValueError(f"{rows} rows of {found[2]} bytes are claimed")
        for sorting in found.get(4, ()):
            if not 0 <= sorting[1] < len(chunks):
                raise ValueError("it is sorted by a column that is not there")
        return RowGroupMetadata(rows, found[2], chunks)

    def _read_chunks(self, reader: CompactReader) -> tuple[ColumnChunk, ...]:
        data, at = reader.data, reader.at
        count, at = read_list_head(data, at, MAX_ELEMENTS, _CHUNK)
        if count != len(self._leaves):
            raise ValueError(f"a row group has {count} columns, not {len(self._leaves)}")
        chunks = []
        for leaf in self._leaves:
            found, at = read_struct(data, at, _CHUNK[1])
            chunks.append(self._chunk(leaf, found))
        reader.at = at
        return tuple(chunks)

    def _chunk(self, leaf: Leaf, chunk: Mapping[int, Any]) -> ColumnChunk:
        found = chunk[3]
        codec, first, size = found[4], found[9], found[7]
        if 1 in chunk or found[1] != leaf.kind or tuple(found[3]) != leaf.path:
            raise ValueError("a column chunk is not of its column")
        if codec not in CODECS or not ENCODINGS.issuperset(found[2]):
            raise ValueError(f"a column has codec {codec} and encodings {found[2]}")
        dictionary = found.get(11)
        least_position = len(_MAGIC)
        if not found[5]:  # other programs write row groups without rows, and no page in them
            first, least_position = max(first, dictionary or 0), 0
            dictionary = None
        elif dictionary == 0:  # to Arrow too this means that there is none, or none is known of
            dictionary = None
        if dictionary is not None:
            if not 0 < dictionary < first:
                raise ValueError(f"a dictionary is at byte {dictionary}, values at {first}")
            first = dictionary
        if first < least_position or size < 0 or first + size > self._position:
            raise ValueError(f"a column chunk of {size} bytes is claimed at byte {first}")
        if found[6] < 0 or (found[5] and not first <= found[9] <= first + size):
            raise ValueError(f"values begin at byte {found[9]} of a chunk at {first}")
        least, largest = _check_statistics(leaf, found.get(12) or {}, found[5])
        _check_sizes(leaf, found.get(16) or {})
        indexes = (
            range(chunk.get(at, 0), chunk.get(at, 0) + chunk.get(at + 1, 0)) for at in (4, 6)
        )
        return ColumnChunk(
            leaf,
            codec,
            found[5],
            first,
            size,
            found[6],
            dictionary is not None,
            least,
            largest,
            *indexes,
        )


def _read_field(reader: CompactReader, field: int, kind: int, fields: Fields, found: Any) -> None:
    if field not in fields:
        reader.at = skip_field(reader.data, reader.at, field, kind)
        return
    found[field], reader.at = read_value(reader.data, reader.at, kind, fields[field])


def _check_statistics(
    leaf: Leaf, found: Mapping[int, Any], values: int
) -> tuple[bytes | None, bytes | None]:
    """The least and the largest value."""
    width = leaf.length if leaf.kind == _FIXED else _BOUND_WIDTHS.get(leaf.kind)
    for field in _BOUNDS:
        bound = found.get(field)
        if bound is not None and width is not None and len(bound) != width:
            raise ValueError(f"a bound has {len(bound)} bytes, not {width}")
    for field in (3, 4):
        if not 0 <= found.get(field, 0) <= values:
            raise ValueError(f"{found[field]} of {values} values are claimed to be special")
    return found.get(6, found.get(2)), found.get(5, found.get(1))


def _check_sizes(leaf: Leaf, found: Mapping[int, Any]) -> None:
    """Check the statistics of sizes: Arrow ends the process if these do not fit."""
    if 1 in found and (leaf.kind != BYTE_ARRAY or found[1] < 0):
        raise ValueError("a column has a size of texts that is not one of texts")
    for field, most in ((2, leaf.max_repetition), (3, leaf.max_definition)):
        counts = found.get(field)
        if counts and (len(counts) != most + 1 or min(counts) < 0):
            raise ValueError("a column has counts of levels that it does not have")


def _leaves(elements: Sequence[Mapping[int, Any]]) -> Iterator[Leaf]:
    """The Parquet columns of a schema, which is a tree whose nodes come before their children."""
    if len(elements) == 1:
        raise ValueError("it has no columns")
    if not elements or not elements[0].get(5):
        raise ValueError("it has no list of columns")
    # Of each open group: the children to come, the path, and its levels.
    groups: list[tuple[int, tuple[bytes, ...], int, int]] = [(elements[0][5], (), 0, 0)]
    for element in elements[1:]:
        while groups and not groups[-1][0]:
            groups.pop()
        if not groups:
            raise ValueError("it has columns that belong to none")
        left, path, definition, repetition = groups.pop()
        groups.append((left - 1, path, definition, repetition))
        repeats = element[3]
        if not 0 <= repeats <= _REPEATED:
            raise ValueError(f"a column has repetition {repeats}")
        path = (*path, element[4])
        definition += repeats in (_OPTIONAL, _REPEATED)
        repetition += repeats == _REPEATED
        children = element.get(5)
        if children is None or (children == 0 and 1 in element):
            yield _leaf(element, path, definition, repetition)
            continue
        if not 0 < children < len(elements) or 1 in element or len(path) >= 3 * MAX_DEPTH:
            raise ValueError(f"a column has {children} columns within it, or is too deep")
        groups.append((children, path, definition, repetition))
    if any(left for left, *_ in groups):
        raise ValueError("some columns are missing")


def _leaf(
    element: Mapping[int, Any], path: tuple[bytes, ...], definition: int, repetition: int
) -> Leaf:
    kind = element[1]
    width: int | None = _WIDTHS.get(kind)
    if kind == _FIXED:
        width = element[2]
        if width <= 0:
            raise ValueError(f"values of {width} bytes are claimed")
    elif width is None and kind != BYTE_ARRAY:
        raise ValueError(f"a column has type {kind}")
    width = _CONVERTED_WIDTHS.get(element.get(6, -1), width)
    return Leaf(path, kind, width, element.get(2), definition, repetition)
