"""Tokens of snapshots: the offsets of several topics as a short text, to come back to them later.

A token only has offsets: a forged one shows the records at these offsets.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
from crc32c import crc32c

from txnlog.errors import InvalidOption, InvalidTopic, UnsupportedVersion
from txnlog.limits import Counter, Name, Offset, PerPartition
from txnlog.names import check_topic
from txnlog.read.isolation_levels import Consistency
from txnlog.read.topic_view import TopicView

_PREFIX = "txnlog"
_VERSION = 1
_CRC_BYTES = 4
_MOST_CHARACTERS = 8 << 20
_MOST_BYTES = 16 << 20
"""Of a decompressed token: a few topics with the most partitions."""
_MOST_PARTITIONS = 500_000
_MOST_TOPICS = 100_000

_Offsets: TypeAlias = Annotated[tuple[Offset, ...], PerPartition]


class PinnedOffsets(msgspec.Struct, frozen=True, array_like=True):
    """One topic: ``starts`` and ``ends`` are offsets by partition.

    ``next_entry`` is the first entry of its log after those that gave its schema.
    """

    topic: Name
    topic_id: Name
    next_entry: Counter
    starts: _Offsets
    ends: _Offsets


class _Content(msgspec.Struct, frozen=True, array_like=True):
    """The topics are decoded one by one: a byte of a token can be a number of 8 in memory."""

    consistency: Consistency
    topics: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=_MOST_TOPICS)]


_DECODER = msgspec.msgpack.Decoder(_Content)
_TOPIC_DECODER = msgspec.msgpack.Decoder(PinnedOffsets)


@dataclass(frozen=True, slots=True)
class SnapshotToken:
    """A token's content: the starts and ends of topics, and how consistent they are together."""

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

    @classmethod
    def before_all(cls, views: Iterable[TopicView]) -> SnapshotToken:
        """The moment at which topics had been made, and had no records yet."""
        topics = {}
        for view in views:
            none = (0,) * len(view.partitions)
            topics[view.topic] = PinnedOffsets(view.topic, view.topic_id, 0, none, none)
        return cls(topics, "atomic")

    def encode(self) -> str:
        """The text: letters, digits, ``-``, ``_`` and ``.``.

        Raises InvalidOption: the topics have more partitions than a token takes.
        """
        topics = [msgspec.Raw(msgspec.msgpack.encode(one)) for one in self.topics.values()]
        content = msgspec.msgpack.encode(_Content(self.consistency, tuple(topics)))
        count = sum(len(pinned.ends) for pinned in self.topics.values())
        if count > _MOST_PARTITIONS or len(topics) > _MOST_TOPICS or len(content) > _MOST_BYTES:
            raise InvalidOption(
                f"a token takes at most {_MOST_TOPICS} topics with {_MOST_PARTITIONS} partitions, "
                f"and the snapshot has {len(topics)} with {count}: make one for fewer topics"
            )
        packed = zlib.compress(content, 9)
        data = packed + crc32c(packed).to_bytes(_CRC_BYTES, "big")
        return f"{_PREFIX}{_VERSION}.{base64.urlsafe_b64encode(data).decode().rstrip('=')}"

    @classmethod
    def decode(cls, text: str) -> SnapshotToken:
        """Decode a token.

        Raises InvalidOption: it is not a token, or is damaged. UnsupportedVersion: a newer txnlog
        has made it.
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
            consistency, found = _unpack(data)
        except (
            ValueError,
            RecursionError,
            binascii.Error,
            zlib.error,
            msgspec.MsgspecError,
        ) as error:
            raise _refusal(text, str(error)) from error
        topics = {pinned.topic: _check(text, pinned) for pinned in found}
        if len(topics) < len(found) or not topics:
            raise _refusal(text, "it has no topics, or one of them twice")
        return cls(topics, consistency)


def _unpack(data: bytes) -> tuple[Consistency, list[PinnedOffsets]]:
    packed, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if crc32c(packed).to_bytes(_CRC_BYTES, "big") != crc:
        raise ValueError("its checksum is wrong, so it was truncated or changed")
    expander = zlib.decompressobj()
    content = expander.decompress(packed, _MOST_BYTES)
    if not expander.eof or expander.unused_data:
        raise ValueError("it does not end where it should")
    outer = _DECODER.decode(content)
    found: list[PinnedOffsets] = []
    count = 0
    for raw in outer.topics:
        found.append(_TOPIC_DECODER.decode(raw))
        count += len(found[-1].starts) + len(found[-1].ends)
        if count > 2 * _MOST_PARTITIONS:
            raise ValueError("it has more partitions than a token takes")
    return outer.consistency, found


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
    return InvalidOption(
        f"{text!r:.60} is not a token that Snapshot.token() made: {reason}; a time is written as "
        "2025-01-01T00:00:00Z"
    )
