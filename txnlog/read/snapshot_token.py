"""Tokens of snapshots: the offsets of several topics as a short text, to come back to them later.

A token only has offsets: a forged one shows the records at these offsets.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from crc32c import crc32c

from txnlog.errors import InvalidOption, InvalidTopic, UnsupportedVersion
from txnlog.names import check_topic
from txnlog.read.isolation import Consistency
from txnlog.read.topic_view import TopicView

_PREFIX = "txnlog"
_VERSION = 1
_CRC_BYTES = 4
_MOST_CHARACTERS = 8 << 20
_MOST_BYTES = 32 << 20
"""The largest decompressed token: a few topics with the most partitions."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class PinnedOffsets(msgspec.Struct, frozen=True, array_like=True):
    """One topic: ``starts`` and ``ends`` are offsets by partition.

    ``next_entry`` is the first entry of its log after those that gave its schema.
    """

    topic: str
    topic_id: str
    next_entry: _Number
    starts: tuple[_Number, ...]
    ends: tuple[_Number, ...]


class _Content(msgspec.Struct, frozen=True, array_like=True):
    consistency: Consistency
    topics: tuple[PinnedOffsets, ...]


_DECODER = msgspec.msgpack.Decoder(_Content)


@dataclass(frozen=True, slots=True)
class SnapshotToken:
    """A token's content: what lies before the ends, and what it is together."""

    topics: Mapping[str, PinnedOffsets]
    consistency: Consistency

    @classmethod
    def of(cls, views: Iterable[TopicView], consistency: Consistency) -> SnapshotToken:
        """The offsets at which topics were pinned."""
        topics = {
            view.topic: PinnedOffsets(
                view.topic,
                view.topic_id,
                view.next_entry,
                tuple(part.log_start_offset for part in view.partitions),
                tuple(part.end_offset for part in view.partitions),
            )
            for view in views
        }
        return cls(topics, consistency)

    def encode(self) -> str:
        """The text: letters, digits, ``-``, ``_`` and ``.``."""
        content = _Content(self.consistency, tuple(self.topics.values()))
        packed = zlib.compress(msgspec.msgpack.encode(content), 9)
        data = packed + crc32c(packed).to_bytes(_CRC_BYTES, "big")
        return f"{_PREFIX}{_VERSION}.{base64.urlsafe_b64encode(data).decode().rstrip('=')}"

    @classmethod
    def decode(cls, text: str) -> SnapshotToken:
        """Decode a token.

        Raises:
            InvalidOption: it is not a token, or is damaged.
            UnsupportedVersion: a newer txnlog has made it.
        """
        head, dot, body = text.partition(".")
        if not (head.startswith(_PREFIX) and dot and len(text) <= _MOST_CHARACTERS):
            raise _refusal(text, f"it does not begin with {_PREFIX}{_VERSION}.")
        version = head.removeprefix(_PREFIX)
        if version != str(_VERSION):
            if version.isascii() and version.isdigit():
                raise UnsupportedVersion(
                    f"the token of a snapshot has version {version:.20}; this txnlog knows "
                    f"{_VERSION}: a newer one made it"
                )
            raise _refusal(text, f"it does not begin with {_PREFIX}{_VERSION}.")
        try:
            data = base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True)
            content = _unpack(data)
        except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError) as error:
            raise _refusal(text, str(error)) from error
        topics = {pinned.topic: _check(text, pinned) for pinned in content.topics}
        if len(topics) < len(content.topics) or not topics:
            raise _refusal(text, "it has no topics, or one of them twice")
        return cls(topics, content.consistency)


def _unpack(data: bytes) -> _Content:
    packed, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if crc32c(packed).to_bytes(_CRC_BYTES, "big") != crc:
        raise ValueError("its checksum is wrong, so it was truncated or changed")
    expander = zlib.decompressobj()
    content = expander.decompress(packed, _MOST_BYTES)
    if not expander.eof or expander.unused_data:
        raise ValueError("it does not end where it should")
    return _DECODER.decode(content)


def _check(text: str, pinned: PinnedOffsets) -> PinnedOffsets:
    try:
        check_topic(pinned.topic)
    except InvalidTopic as error:
        raise _refusal(text, str(error)) from error
    fits = len(pinned.starts) == len(pinned.ends)
    if not fits or any(a > b for a, b in zip(pinned.starts, pinned.ends, strict=True)):
        raise _refusal(text, f"topic {pinned.topic!r} ends before it starts")
    return pinned


def _refusal(text: str, reason: str) -> InvalidOption:
    return InvalidOption(f"{text!r:.60} is not a token that Snapshot.token() made: {reason}")
