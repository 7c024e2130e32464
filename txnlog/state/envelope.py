r"""The frame around every small persisted object: format version, checksum, one JSON object.

    {"format":1,"checksum":"9a3c01ff","kind":"append",...}\n

The checksum is the CRC-32C of every byte after the comma that follows it, so it needs no
canonical JSON and a person can still read the file. Knows nothing of what the objects mean.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from crc32c import crc32c

from txnlog.errors import CorruptEntry, UnsupportedVersion

FORMAT_VERSION = 1
WITH_MANIFESTS = 2
"""Of checkpoints that leave a part to manifests, and of these: older versions must not read them
as if that part were not there."""
WITH_MOVES = 2
"""Of epochs of stores whose controller has moved, or is about to: older versions would go on at the
old one."""
WITH_REWRITES = 3
"""Of entries that rewrite records, and of checkpoints and lists that tell of such: older versions
must not go on with the old segments, which are deleted."""
WITH_SHARED_FILES = 3
"""Of what says that a segment lies somewhere in a file, which older versions would look for in a
file of its own: entries, checkpoints, manifest lists and staged writes."""
WITH_PROPOSALS = 3
"""Of entries that place what several writers have proposed, and of proposals: older versions, which
do not know the kind, must refuse the topic, not pass over them."""
WITH_PARQUET = 4
"""Of what says that a segment is a Parquet file, or that those of a topic are to be: older versions
would neither find nor write them."""
WITH_BUNDLES = 4
"""Of files that hold several entries, of proposals for such, and of checkpoints that call an entry
in one undecided: older versions would take the numbers without a file for lost entries."""
WITH_SCHEMA = 5
"""Of the entries and checkpoints of typed topics, whose columns may have been renamed, and may have
defaults: older versions would find neither, nor tell by what schema a segment was written."""
WITH_MEMBERS = 5
"""Of entries about the members of a group, of offsets that one commits, and of checkpoints of a
group that ever had any: older versions would commit what is a member's."""
WITH_CHAPTERS = 5
"""Of stores in which names of closed chapters are freed early, and of the marks that close them:
older versions put entries without a look for these marks."""
WITH_TYPED_BATCHES = 6
"""Of the entries and checkpoints of typed topics that are not stored in Parquet files: older
versions know their columns in these alone."""
NEWEST = 6
"""The newest version of any kind that is read here."""

_HEAD = re.compile(rb'\{"format":(\d{1,9}),"checksum":"([0-9a-f]{8})",')
_FORMAT = re.compile(rb'\{"format":(\d{1,9})[,}]')

T = TypeVar("T")


def encode(value: msgspec.Struct, version: int = FORMAT_VERSION) -> bytes:
    """Serialise a struct with its format version and checksum, ending in a newline."""
    body = msgspec.json.encode(value)[1:] + b"\n"
    return b'{"format":%d,"checksum":"%08x",' % (version, crc32c(body)) + body


def decode(data: bytes, decoder: msgspec.json.Decoder[T], path: str, newest: int = NEWEST) -> T:
    """Check and decode what :func:`encode` wrote, in version ``newest`` or an older one.

    Raises:
        UnsupportedVersion: a newer txnlog wrote it.
        CorruptEntry: anything else that is wrong; the message names ``path``.
    """
    version = _FORMAT.match(data)
    if version and int(version[1]) > newest:
        raise UnsupportedVersion(
            f"{path} has format version {int(version[1])}; this txnlog reads versions up to "
            f"{newest}: install a newer txnlog to use this store"
        )
    head = _HEAD.match(data)
    if head is None or int(head[1]) < 1:
        raise CorruptEntry(
            f"{path} is damaged: it does not begin with a format version and a checksum "
            f"({len(data)} bytes); restore this file from a backup"
        )
    body = data[head.end() :]
    if crc32c(body) != int(head[2], 16):
        raise CorruptEntry(
            f"{path} is damaged: its checksum is {crc32c(body):08x}, "
            f"{head[2].decode()} was written; restore this file from a backup"
        )
    try:
        return decoder.decode(b"{" + body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptEntry(f"{path} does not decode: {error}") from error
