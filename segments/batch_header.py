"""The 61-byte header of a record batch, Kafka's version 2 layout. Knows nothing of payloads.

The same header stands before every payload; its magic byte says which payload follows, and it has
the number of its codec. The log keeps of each segment that it places what distinguishes its batches
from those of every other one. Each batch is compared with that when its header is read, so a file
that was swapped with another valid one is noticed whatever part of it is read.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

import crc32c

from txnlog.segments.errors import CorruptRecord, UnknownCodec, UnsupportedCompression


class Compression(enum.IntEnum):
    """A codec. The numbers are stored in the batch header's attributes: append only."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def parse(cls, name: str) -> Compression:
        """The codec of Kafka's ``compression.type``; "uncompressed" is another name for "none".

        Raises UnsupportedCompression for any other name.
        """
        if name == "uncompressed":
            return cls.NONE
        for codec in cls:
            if codec.kafka_name == name:
                return codec
        known = ", ".join(codec.kafka_name for codec in cls)
        raise UnsupportedCompression(f"compression {name!r} is not one of {known}")

    @property
    def kafka_name(self) -> str:
        """The name used in configurations, such as "zstd"."""
        return self.name.lower()


BytesLike: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES: Final = 61
CRC_START: Final = 21  # the CRC-32C covers everything from the attributes to the batch's end
MAGIC_V0: Final = 0  # Kafka's old message sets: see formats/message_sets.py
MAGIC_V1: Final = 1
MAGIC_KAFKA: Final = 2
MAGIC_COLUMNS: Final = 100
MAGIC_PARQUET: Final = 101  # in no file: used to show a row group of a Parquet segment
MAGIC_PACKED: Final = 102
MAGIC_TYPED_COLUMNS: Final = 103
MAGIC_POSITION: Final = 16  # the same in every version of Kafka's formats

# What a header says when a field does not apply, as in Kafka.
NO_LEADER_EPOCH: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

# Those of txnlog's own payloads, with a check of the header before them.
_OWN_MAGICS: Final = (MAGIC_COLUMNS, MAGIC_PACKED, MAGIC_TYPED_COLUMNS)

_LENGTH_BASE = 12  # the length field counts what comes after itself
_MAX_INT32 = (1 << 31) - 1

CODEC_BITS: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

# In rows that txnlog writes. The checksum covers neither base offset nor leader epoch: the first is
# repeated as base sequence, of the second there is a sum in the attributes' higher byte, which
# Kafka's own readers ignore.
GUARDED: Final = 0x0100
GUARD_BITS: Final = 0x7F00
_SUM_SHIFT = 9
_SUM_BITS = 6

_HEADER = struct.Struct(
    ">"
    "q"  #  0  base offset
    "i"  #  8  length: bytes after this field
    "i"  # 12  leader epoch
    "b"  # 16  magic
    "I"  # 17  CRC-32C of bytes 21 to the end
    "h"  # 21  attributes
    "i"  # 23  last offset delta
    "q"  # 27  base timestamp, ms
    "q"  # 35  max timestamp, ms
    "q"  # 43  producer id
    "h"  # 51  producer epoch
    "i"  # 53  base sequence
    "i"  # 57  record count
)
assert _HEADER.size == HEADER_BYTES


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """One batch's header. Offsets in segments written by txnlog are relative to the segment."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def decode(cls, data: BytesLike, *, name: str = "batch", position: int = 0) -> BatchHeader:
        """Read the header at the start of ``data``; name and position are only for the error.

        Raises CorruptRecord if there are too few bytes or a field cannot be true of any batch. The
        batch's checksum is not checked.
        """
        if len(data) < HEADER_BYTES:
            raise CorruptRecord.at(
                name, position, f"{len(data)} bytes are left, a batch header takes {HEADER_BYTES}"
            )
        header = cls(*_HEADER.unpack_from(data))
        reason = header._implausible()
        if reason is not None:
            raise CorruptRecord.at(name, position, reason)
        return header

    def _implausible(self) -> str | None:
        if self.length < HEADER_BYTES - _LENGTH_BASE:
            return f"length {self.length} is shorter than a batch header"
        if self.base_offset < 0:
            return f"base offset {self.base_offset} is negative"
        if self.last_offset_delta < 0:
            return f"last offset delta {self.last_offset_delta} is negative"
        # Compaction leaves gaps, so fewer records than offsets are fine; more never are.
        if not 0 <= self.record_count <= self.last_offset_delta + 1:
            return (
                f"record count {self.record_count} does not fit "
                f"last offset delta {self.last_offset_delta}"
            )
        return None

    def encode(self) -> bytes:
        """The 61 bytes."""
        return _HEADER.pack(
            self.base_offset,
            self.length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        )

    @property
    def is_self_checked(self) -> bool:
        """Whether the header can be trusted without its batch, as in txnlog's own formats."""
        return self.magic in _OWN_MAGICS

    @property
    def is_guarded(self) -> bool:
        """Whether these are rows of which the checksum covers base offset and leader epoch too."""
        return self.magic == MAGIC_KAFKA and bool(self.attributes & GUARDED)

    @property
    def kafka_leader_epoch(self) -> int:
        """The leader epoch, -1 if a segment's tag takes its place."""
        return NO_LEADER_EPOCH if self._has_tag else self.leader_epoch

    @property
    def tag(self) -> int:
        """The tag of the segment that txnlog wrote it for; -1 for none."""
        return self.leader_epoch if self._has_tag else NO_LEADER_EPOCH

    @property
    def _has_tag(self) -> bool:
        return self.magic in (*_OWN_MAGICS, MAGIC_PARQUET) or self.is_guarded

    def broken_guard(self) -> str | None:
        """The damage to fields that only the guard protects; None if there is none."""
        if not self.is_guarded:
            return None
        if self.base_sequence != self.base_offset:
            return f"base offset {self.base_offset} was {self.base_sequence} when it was written"
        if self.attributes & GUARD_BITS != guard_of(self.leader_epoch):
            return f"leader epoch {self.leader_epoch} was another when it was written"
        return None

    @property
    def is_message_set(self) -> bool:
        """Whether this is an old compressed wrapper, whose header gives only its last offset.

        Until the wrapper is decoded, its base offset is the last offset, too.
        """
        return self.magic < MAGIC_KAFKA and bool(self.attributes & CODEC_BITS)

    @property
    def is_message(self) -> bool:
        """Whether this is one old message, or a run of them, and not compressed."""
        return self.magic < MAGIC_KAFKA and not self.attributes & CODEC_BITS

    @property
    def size_bytes(self) -> int:
        """The whole batch, header and payload."""
        return self.length + _LENGTH_BASE

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; after 2^31 - 1 comes 0. -1 if there are no sequences."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & _MAX_INT32

    @property
    def codec(self) -> Compression:
        """The codec of the payload. Raises UnknownCodec for a number that no codec has."""
        number = self.attributes & CODEC_BITS
        try:
            return Compression(number)
        except ValueError:
            raise UnknownCodec(f"no codec has the number {number}") from None

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record has the max timestamp, given by the log and not by the producer."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether a Kafka producer wrote the batch inside a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is one of Kafka's transaction markers and holds no user's records."""
        return bool(self.attributes & CONTROL)


def guard_of(leader_epoch: int) -> int:
    """The bits of the attributes that guard rows with this leader epoch.

    They are the XOR of its groups of six bits: one flipped bit changes one of them.
    """
    left, folded = leader_epoch & 0xFFFFFFFF, 0
    while left:
        folded ^= left & ((1 << _SUM_BITS) - 1)
        left >>= _SUM_BITS
    return GUARDED | folded << _SUM_SHIFT


def batch_length(payload_bytes: int) -> int:
    """The length field of a batch with this many bytes after its 61-byte header."""
    return HEADER_BYTES - _LENGTH_BASE + payload_bytes


NO_TAG: Final = -1
NO_CRC: Final = -1


def tag_of(name: str) -> int:
    """The tag in the batches of a segment with this unique name: 31 bits."""
    tag: int = crc32c.crc32c(name.encode()) & 0x7FFFFFFF
    return tag


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """Facts about every batch of a segment; offsets are those in the file.

    ``tag`` is in the leader epoch of each batch, NO_TAG if they have none, as Kafka's.
    Offsets lie in [first_offset, end_offset). ``first_crc`` is the checksum in the header of the
    first batch; NO_CRC if it is not known.
    """

    first_offset: int
    end_offset: int
    tag: int = NO_TAG
    first_crc: int = NO_CRC

    def check(self, header: BatchHeader, name: str, position: int) -> None:
        """Raise CorruptRecord unless a batch at this position can be one of the segment."""
        if self.tag not in (NO_TAG, header.leader_epoch):
            reason = f"its tag is {header.leader_epoch}, the log says {self.tag}"
        elif header.base_offset < self.first_offset or header.last_offset >= self.end_offset:
            found = f"{header.base_offset} to {header.last_offset}"
            placed = f"{self.first_offset} to {self.end_offset - 1}"
            reason = f"its offsets are {found}, the log says {placed}"
        elif position == 0 and self.first_crc not in (NO_CRC, header.crc):
            reason = f"its checksum is {header.crc:#010x}, the log says {self.first_crc:#010x}"
        else:
            return
        raise CorruptRecord.at(
            name,
            position,
            f"this batch is not of this segment: {reason}. The header is damaged, or the file was "
            "exchanged for another one",
            header.base_offset,
        )
