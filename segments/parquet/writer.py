"""Writes a segment as a Parquet file: batches become row groups, and the footer their index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import crc32c
import numpy as np
import pyarrow as pa

from txnlog.segments.batch_encoder import SegmentEnd, SupportsWrite
from txnlog.segments.compression import Compression
from txnlog.segments.identity import NO_TAG
from txnlog.segments.parquet.field_ids import with_record_ids
from txnlog.segments.parquet.footer import (
    CHECKSUMS_KEY,
    OFFSET_COLUMN,
    TAG_MASK,
)
from txnlog.segments.records import RECORD_SCHEMA, TIMESTAMP_COLUMNS, Int32Array

_FOOTER_BYTES: Final = 1024
"""About what the footer takes besides what it says of each column."""
_COLUMN_BYTES: Final = 256
"""About what the footer says of one column in a row group, and what the column's pages add."""

_CODECS: Final = {
    Compression.NONE: "none",
    Compression.GZIP: "gzip",
    Compression.SNAPPY: "snappy",
    Compression.LZ4: "lz4",
    Compression.ZSTD: "zstd",
}


class RowGroupEncoder:
    """Writes row groups to a sink, and at the end the footer.

    ``origin`` is written into the footer: it tells people, and other engines, whose file it is.
    With ``stores_offsets`` each row's offset is stored: then there may be gaps.
    """

    def __init__(
        self,
        sink: SupportsWrite,
        *,
        compression: Compression,
        level: int | None,
        stores_offsets: bool,
        origin: Mapping[str, str],
    ) -> None:
        self._output = _Output(sink)
        self._compression = compression
        self._level = level
        self._stores_offsets = stores_offsets
        self._origin = origin
        self._checksums: list[int] = []
        self._writer: Any = None
        self._column_count = len(RECORD_SCHEMA)

    @property
    def overhead_bytes(self) -> int:
        """What the footer and the pages of so many row groups take, and of one more."""
        groups = len(self._checksums) + 1
        return _FOOTER_BYTES + groups * self._column_count * _COLUMN_BYTES

    def write(
        self, records: pa.RecordBatch, base_offset: int, offset_deltas: Int32Array | None
    ) -> int:
        """Write one row group; returns how many bytes it took."""
        if self._stores_offsets:
            records = _with_offsets(records, base_offset, offset_deltas)
        elif offset_deltas is not None:
            raise ValueError("offsets with gaps are stored only if it is known from the start")
        before = self._output.size_bytes
        if self._writer is None:
            self._column_count = len(records.schema)
            self._writer = self._begin(records.schema)  # which writes the magic
        self._output.crc = 0
        self._writer.write_table(pa.Table.from_batches([records]), row_group_size=records.num_rows)
        self._checksums.append(self._output.crc)
        return self._output.size_bytes - before

    def finish(self) -> SegmentEnd:
        """Write the footer, if there is any row group."""
        if self._writer is None:
            return SegmentEnd(0, b"", b"", NO_TAG)
        before = self._output.size_bytes
        checksums = ",".join(f"{crc:08x}" for crc in self._checksums)
        self._writer.add_key_value_metadata({**self._origin, CHECKSUMS_KEY.decode(): checksums})
        self._output.crc = 0
        self._writer.close()
        return SegmentEnd(self._output.size_bytes - before, b"", b"", self._output.crc & TAG_MASK)

    def _begin(self, schema: pa.Schema) -> Any:
        from pyarrow import parquet

        codec = _CODECS[self._compression]
        return parquet.ParquetWriter(
            pa.PythonFile(self._output, mode="w"),
            with_record_ids(schema),
            version="2.6",
            compression=codec,
            compression_level=None if codec in ("none", "snappy") else self._level,
            write_page_checksum=True,
            store_schema=False,
            write_statistics=_statistics(schema),
        )


def _statistics(schema: pa.Schema) -> bool | list[str]:
    """Which columns have a least and a largest value in the footer: of bytes they could be long."""
    if schema.names[: len(RECORD_SCHEMA)] != RECORD_SCHEMA.names:
        return True
    return [name for name in (*TIMESTAMP_COLUMNS, OFFSET_COLUMN) if name in schema.names]


def _with_offsets(
    records: pa.RecordBatch, base_offset: int, offset_deltas: Int32Array | None
) -> pa.RecordBatch:
    deltas = np.arange(records.num_rows) if offset_deltas is None else offset_deltas
    offsets = pa.array(deltas.astype(np.int64) + base_offset)
    field = pa.field(OFFSET_COLUMN, pa.int64(), nullable=False)
    return records.append_column(field, offsets)


class _Output:
    """The sink as pyarrow wants it: a file that is written from its beginning to its end."""

    closed = False

    def __init__(self, sink: SupportsWrite) -> None:
        self._sink = sink
        self.size_bytes = 0
        self.crc = 0

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._sink.write(piece)
        self.size_bytes += len(piece)
        self.crc = crc32c.crc32c(piece, self.crc)
        return len(piece)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """The sink is the caller's to close."""
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
