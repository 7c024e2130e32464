"""How large anything may be that is decoded from a store, a token or an import.

Each number, text and list of a decoded struct has one of these types, so what is out of range is
refused before anything is made of it: ``tests/project/test_limits.py`` checks that none is without.
They are what a sound store can hold, with room to spare, and no guess at what one has.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

MAX_PARTITIONS: Final = 100_000
"""Of a topic."""
MOST_OFFSETS: Final = 1 << 62
"""All records of a partition lie below: an offset and a count of offsets are an offset again."""
MOST_ITEMS: Final = 1 << 20
"""Of any list, and keys of any object, that has no smaller limit."""
MOST_TEXT: Final = 1 << 20
"""Characters of a text for people, or of a URL."""
MOST_NAME: Final = 250
"""Characters of a name: filesystems take 255 bytes for one."""
MOST_LONG_NAME: Final = 4096
"""Characters of a path, or of a name that is in no file's."""
MOST_BYTES: Final = 64 << 20
"""Of one stored JSON object, unless it has a limit of its own: an entry, a state, a note."""
MOST_STATE_BYTES: Final = 256 << 20
"""Of one that grows with a topic or a group: a checkpoint, a list of manifests, rewrites.

No storage reads a larger object whole (``txnlog/storage/whole.py``).
"""
MOST_MARK_BYTES: Final = 1 << 20
"""Of one that never grows: a store's file, a marker, a mark."""

MOST_TIMEOUT_MS: Final = (1 << 31) - 1
"""Kafka's limit: its timeouts have 31 bits."""
NEVER_MS: Final = (1 << 63) - 1
"""The last time at which something may go."""

_INT16_MAX = (1 << 15) - 1
_INT31_MAX = (1 << 31) - 1
_INT32_MAX = (1 << 32) - 1
_LONG_MAX = (1 << 63) - 1
_HALF_LONG_MAX = MOST_OFFSETS - 1
_MAX_TIME_MS = _LONG_MAX // 1000
_MAX_FILE_BYTES = 1 << 40

# -- offsets and positions -------------------------------------------------------------------------

Offset: TypeAlias = Annotated[int, Meta(ge=0, le=_LONG_MAX)]
BaseOffset: TypeAlias = Annotated[int, Meta(ge=0, le=_HALF_LONG_MAX)]
"""Of a segment or a batch: its end, this and an :data:`OffsetCount`, is an offset too."""
OffsetCount: TypeAlias = Annotated[int, Meta(ge=0, le=_HALF_LONG_MAX)]
RecordCount: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 31)]
"""Of records, or batches, in one segment, whose offsets are stored in 31 bits."""
PartitionNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_PARTITIONS)]
PartitionOrShared: TypeAlias = Annotated[int, Meta(ge=-1, lt=MAX_PARTITIONS)]
PartitionCount: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)]
PartitionCountOrNone: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_PARTITIONS)]
FileBytes: TypeAlias = Annotated[int, Meta(ge=0, le=_MAX_FILE_BYTES)]
FilePosition: TypeAlias = Annotated[int, Meta(ge=-1, le=_MAX_FILE_BYTES)]
TotalBytes: TypeAlias = Annotated[int, Meta(ge=0, le=_HALF_LONG_MAX)]
"""Of many files."""

# -- counters and identities -----------------------------------------------------------------------

Counter: TypeAlias = Annotated[int, Meta(ge=0, le=_HALF_LONG_MAX)]
"""What counts up by one, so that it never gets there: entries, transactions, generations."""
CounterOrNone: TypeAlias = Annotated[int, Meta(ge=-1, le=_HALF_LONG_MAX)]
"""A counter, or -1 for none."""
ProducerId: TypeAlias = Annotated[int, Meta(ge=-1, le=_LONG_MAX)]
ProducerEpoch: TypeAlias = Annotated[int, Meta(ge=-1, le=_INT16_MAX)]
SequenceNumber: TypeAlias = Annotated[int, Meta(ge=-1, le=_INT31_MAX)]
Checksum: TypeAlias = Annotated[int, Meta(ge=-1, le=_INT32_MAX)]
VersionNumber: TypeAlias = Annotated[int, Meta(ge=0, le=_LONG_MAX)]
"""An idempotence version, which an application chooses."""
ColumnId: TypeAlias = Annotated[int, Meta(ge=0, le=_INT31_MAX)]
Incarnations: TypeAlias = Annotated[int, Meta(ge=0, le=999_999_999)]
"""How often something was made anew that has up to nine digits in names of files."""

# -- times -----------------------------------------------------------------------------------------

TimeMs: TypeAlias = Annotated[int, Meta(ge=-_MAX_TIME_MS, le=_MAX_TIME_MS)]
"""Since the epoch: Arrow's timestamps count microseconds."""
HorizonMs: TypeAlias = Annotated[int, Meta(ge=-1, le=NEVER_MS)]
"""A time at which something may go, which may be never."""
TimeoutMs: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_TIMEOUT_MS)]
DurationMs: TypeAlias = Annotated[int, Meta(ge=0, le=_MAX_TIME_MS)]

# -- texts -----------------------------------------------------------------------------------------

Name: TypeAlias = Annotated[str, Meta(max_length=MOST_NAME)]
"""Of a topic, a group, a file; an id; a random token."""
SEGMENT_NAME: Final = "([A-Za-z0-9][A-Za-z0-9._-]*)?"
"""A pattern for names of segments: they stand in paths and in SQL. Empty: there is no file."""
SegmentName: TypeAlias = Annotated[str, Meta(max_length=MOST_NAME, pattern=rf"\A{SEGMENT_NAME}\Z")]
Metadata: TypeAlias = Annotated[str, Meta(max_length=4096)]
"""Of a committed offset: Kafka's offset.metadata.max.bytes."""
Text: TypeAlias = Annotated[str, Meta(max_length=MOST_TEXT)]
LongName: TypeAlias = Annotated[str, Meta(max_length=MOST_LONG_NAME)]
"""Of a file within its store, of an application, of a host."""
EncodedSchema: TypeAlias = Annotated[str, Meta(max_length=16 << 20)]

# -- lists, and objects with keys ------------------------------------------------------------------

AnyNumber: Final = Meta(max_length=MOST_ITEMS)
"""For a list, or an object with keys: ``Annotated[tuple[Name, ...], AnyNumber]``."""
PerPartition: Final = Meta(max_length=MAX_PARTITIONS)
"""For a list, or an object with keys, that has an item for each partition of a topic."""
Settings: TypeAlias = Annotated[dict[Name, Text], Meta(max_length=1000)]
SettingChanges: TypeAlias = Annotated[dict[Name, Text | None], Meta(max_length=1000)]
"""None resets a setting to its default."""
Names: TypeAlias = Annotated[tuple[Name, ...], AnyNumber]
