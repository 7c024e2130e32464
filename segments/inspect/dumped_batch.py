"""What a dump of a segment is made of."""

from __future__ import annotations

from dataclasses import dataclass

from txnlog.segments.batch_header import BatchHeader, BytesLike
from txnlog.segments.batches import DecodedBatch


@dataclass(frozen=True, slots=True, eq=False)
class DumpedBatch:
    """Bytes [position, position + size_bytes) of a segment: a batch, or the rest of one.

    ``damage`` says what is wrong, None if nothing is. Without ``header`` the bytes are not known to
    be a batch at all; without ``decoded`` its records cannot be read. ``crc_ok`` is None without a
    header and its checksum. ``data`` are the bytes of a batch, as they are. ``is_foreign``: they
    are of a Parquet file that txnlog has not written, and its records are rows of any columns.
    """

    position: int
    size_bytes: int
    header: BatchHeader | None
    crc_ok: bool | None
    decoded: DecodedBatch | None
    damage: str | None
    data: BytesLike = b""
    is_foreign: bool = False
