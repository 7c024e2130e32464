"""An independent decoder and encoder of segment bytes, by hand, that shares no code with txnlog.

What the tests say about bytes comes from here: offsets and sizes are those of docs/FORMAT.md.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

_TABLE = [0] * 256
for _n in range(256):
    _c = _n
    for _ in range(8):
        _c = (_c >> 1) ^ 0x82F63B78 if _c & 1 else _c >> 1
    _TABLE[_n] = _c


_LANES = 1024


def crc32c(data: bytes) -> int:
    """CRC-32C byte by byte: slow, and independent of the library that the code uses."""
    size = len(data) // _LANES
    if size < 1024:
        return _follow(0xFFFFFFFF, data) ^ 0xFFFFFFFF
    # Many pieces side by side. A checksum is linear: that of a piece, and what its zeros make of
    # the one before, bit by bit.
    lanes = np.frombuffer(data, np.uint8, _LANES * size).reshape(_LANES, size)
    table = np.array(_TABLE, np.uint32)
    crcs = np.concatenate([np.zeros(_LANES, np.uint32), np.uint32(1) << np.arange(32, dtype="u4")])
    step = np.zeros(len(crcs), np.uint32)
    for column in lanes.T:
        step[:_LANES] = column
        crcs = (crcs >> np.uint32(8)) ^ table[(crcs ^ step) & np.uint32(0xFF)]
    shifted = [int(crc) for crc in crcs[_LANES:]]
    total = 0xFFFFFFFF
    for crc in crcs[:_LANES]:
        moved = 0
        for bit in range(32):
            moved ^= shifted[bit] if total >> bit & 1 else 0
        total = moved ^ int(crc)
    return _follow(total, data[_LANES * size :]) ^ 0xFFFFFFFF


def _follow(crc: int, data: bytes) -> int:
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc


@dataclass
class RawBatch:
    """The fields of one batch as found in the bytes."""

    position: int
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    check: bytes
    payload: bytes
    raw: bytes

    def table(self) -> pa.Table:
        """The payload, read by Arrow as any Arrow user would."""
        return pa.ipc.open_stream(io.BytesIO(self.payload)).read_all()


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def raw_batches(data: bytes) -> list[RawBatch]:
    """Cut a segment into batches by their length fields alone."""
    found, at = [], 0
    while at < len(data):
        b = data[at:]
        size = 12 + _signed(b[8:12])
        found.append(
            RawBatch(
                position=at,
                base_offset=_signed(b[0:8]),
                length=_signed(b[8:12]),
                leader_epoch=_signed(b[12:16]),
                magic=b[16],
                crc=int.from_bytes(b[17:21], "big"),
                attributes=_signed(b[21:23]),
                last_offset_delta=_signed(b[23:27]),
                base_timestamp=_signed(b[27:35]),
                max_timestamp=_signed(b[35:43]),
                producer_id=_signed(b[43:51]),
                producer_epoch=_signed(b[51:53]),
                base_sequence=_signed(b[53:57]),
                record_count=_signed(b[57:61]),
                check=b[61:64],
                payload=b[64:size],
                raw=b[:size],
            )
        )
        at += size
    return found


def resealed(batch: bytes, changes: dict[int, bytes]) -> bytes:
    """The batch with bytes replaced at positions, and both checksums made right again."""
    data = bytearray(batch)
    for at, new in changes.items():
        data[at : at + len(new)] = new
    blank = bytes(data[:17]) + b"\0\0\0\0" + bytes(data[21:61])
    data[61:64] = (crc32c(blank) & 0xFFFFFF).to_bytes(3, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)
