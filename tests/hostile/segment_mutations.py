"""Changes to record batches and Arrow streams, after which checksums are right again."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from random import Random

import crc32c
import lz4.frame
import pyarrow as pa
import zstandard

from tests.hostile.mutations import NUMBERS, change_bytes, change_number, put_number

_MAGIC_AT, _CRC_AT, _CRC_FROM, _HEADER_BYTES = 16, 17, 21, 61
_OWN_MAGICS = (100, 102, 103)
_HEADER_FIELDS = (
    *((0, "q"), (8, "i"), (12, "i"), (16, "b"), (21, "h"), (23, "i"), (27, "q"), (35, "q")),
    *((43, "q"), (51, "h"), (53, "i"), (57, "i")),
)


def change_batches(random: Random, data: bytes) -> bytes:
    """One batch of a segment is another: its header, its payload, or what that is compressed to."""
    batches = [*_batches(data)]
    if not batches or random.random() < 0.05:
        return change_bytes(random, data)
    at = random.randrange(len(batches))
    if random.random() < 0.05:
        batches[at] = batches[random.randrange(len(batches))]
    else:
        batches[at] = change_batch(random, batches[at])
    return b"".join(batches)


def _batches(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _HEADER_BYTES <= len(data):
        (length,) = struct.unpack_from(">i", data, at + 8)
        yield data[at : at + 12 + length]
        at += 12 + length


def change_batch(random: Random, batch: bytes) -> bytes:
    """A batch with another field in its header, or another payload; its checksums are right."""
    magic = batch[_MAGIC_AT]
    if magic < 2:
        return _change_message(random, batch)
    start = 64 if magic in _OWN_MAGICS else _HEADER_BYTES
    header, payload = bytearray(batch[:_HEADER_BYTES]), batch[start:]
    if random.random() < 0.25:
        at, form = random.choice(_HEADER_FIELDS)
        put_number(random, header, at, ">" + form)
    if random.random() < 0.9:
        payload = _change_payload(random, magic, header, payload)
    if random.random() < 0.95:
        struct.pack_into(">i", header, 8, start - 12 + len(payload))
    return sealed(bytes(header), payload)


def _change_message(random: Random, message: bytes) -> bytes:
    """A message of Kafka's oldest formats, whose checksum is zlib's, at byte 12."""
    head, rest = bytearray(message[:12]), change_bytes(random, message[16:])
    if random.random() < 0.2:
        put_number(random, head, 0, ">q")
    if random.random() < 0.95:
        struct.pack_into(">i", head, 8, 4 + len(rest))
    return bytes(head) + zlib.crc32(rest).to_bytes(4, "big") + rest


def sealed(header: bytes, payload: bytes) -> bytes:
    """A batch with the checksums of these."""
    blank = header[:_CRC_AT] + bytes(4) + header[_CRC_FROM:]
    check = b""
    if header[_MAGIC_AT] in _OWN_MAGICS:
        check = (crc32c.crc32c(blank) & 0xFFFFFF).to_bytes(3, "big")
    crc = crc32c.crc32c(header[_CRC_FROM:] + check + payload)
    return header[:_CRC_AT] + crc.to_bytes(4, "big") + header[_CRC_FROM:] + check + payload


def _change_payload(random: Random, magic: int, header: bytearray, payload: bytes) -> bytes:
    if magic in (100, 103) and random.random() < 0.8:
        plain = random.random() < 0.7
        if plain:
            header[22] &= 0xF8  # the codec: none
        return change_arrow(random, payload, plain=plain)
    if magic in (100, 103) or random.random() < 0.3:
        return change_bytes(random, payload)
    codec = header[22] & 7
    expanded = change_bytes(random, _expand(codec, payload))
    if random.random() < 0.5:
        return _compress(codec, expanded)
    header[22] &= 0xF8
    return expanded


def _expand(codec: int, data: bytes) -> bytes:
    """What was compressed; bytes of another codec, after the header was changed, as they are."""
    try:
        return _expanded(codec, data)
    except (OSError, EOFError, RuntimeError, zlib.error, zstandard.ZstdError):
        return data


def _expanded(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return gzip.decompress(data)
    if codec == 3:
        return bytes(lz4.frame.decompress(data))
    if codec == 4:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return data  # snappy's blocks are changed as they are


def _compress(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return gzip.compress(data)
    if codec == 3:
        return bytes(lz4.frame.compress(data, block_linked=False))
    if codec == 4:
        return zstandard.ZstdCompressor().compress(data)
    return data


def change_arrow(random: Random, data: bytes, *, plain: bool = True) -> bytes:
    """An Arrow stream, by the bytes of its messages, or by the values of a column.

    Args:
        random: decides.
        data: a stream.
        plain: without compression, so that the changed bytes are offsets and values themselves.
    """
    with pa.ipc.open_stream(data) as stream:
        table = stream.read_all()
    what = random.random()
    if what < 0.25 and table.num_columns:
        table = _change_column(random, table)
    if plain or what < 0.25:
        data = _arrow_bytes(table, None if plain else "zstd")
    if what >= 0.2:
        data = change_bytes(random, data) if random.random() < 0.4 else _numbers(random, data)
    return data


def _numbers(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        changed = bytearray(change_number(random, changed))
    return bytes(changed)


def _arrow_bytes(table: pa.Table, codec: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _change_column(random: Random, table: pa.Table) -> pa.Table:
    """Extreme numbers in a column of whole ones, or the column left out, twice or all null."""
    at = random.randrange(table.num_columns)
    column, field = table.column(at), table.schema.field(at)
    what = random.randrange(6)
    if what == 0:
        return table.remove_column(at)
    if what == 1:
        return table.append_column(field, column)
    if what == 2:
        return table.set_column(at, field.with_nullable(True), pa.nulls(len(column), column.type))
    if what == 3:
        return pa.concat_tables([table] * random.choice((0, 2, 100)) or [table.slice(0, 0)])
    if not pa.types.is_integer(column.type):
        return table.set_column(at, field.name, pa.array(range(len(column)), pa.int64()))
    bits = column.type.bit_width
    fitting = [
        n for n in NUMBERS if isinstance(n, int) and -(1 << (bits - 1)) <= n < 1 << (bits - 1)
    ]
    values = column.to_pylist()
    for _ in range(random.choice((1, 1, len(values)))):
        if values:
            values[random.randrange(len(values))] = random.choice(fitting)
    return table.set_column(at, field, pa.array(values, column.type))
