"""All topics, one topic, and one partition as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape as escape_pattern

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from txnlog.config import topic_setting, topic_settings
from txnlog.errors import TxnlogError
from txnlog.inspect.describe import describe_segments_within
from txnlog.inspect.descriptions import ProducerDescription, SegmentDescription, StableOffset
from txnlog.inspect.group_lag import GroupDescription, GroupOffset, MemberDescription
from txnlog.inspect.placed_indexes import dump_placed_indexes
from txnlog.log import named_folders
from txnlog.log.segment_outline import SegmentOutline, outline_partition
from txnlog.log.topic_log import TopicLog
from txnlog.storage.base import Storage
from txnlog.ui.console import Console
from txnlog.ui.page import page_of

_PICTURE_WIDTH = 1000
_MOST_BARS = 400
_LEAST_WIDTH = 1.0
_LISTED = 100
_INDEXED = 20
"""So many segments' indexes are read for a picture, when that is asked for."""
_OUTCOMES = ("committed", "aborted", "undecided")


def list_topics(console: Console, request: Request) -> Response:
    """Topics with their sizes and rates, a page at a time."""
    wanted = request.query_params.get("find", "").strip()
    there = named_folders.list_topics(console.store.storage)
    paged = page_of(request, sorted(name for name in there if wanted.lower() in name.lower()))
    patterns = [escape_pattern(name) for name in paged.items]
    found = [*console.store.topics.describe_all(patterns).with_errors()]
    now_s = console.store.logs.clock.monotonic_s()
    rates = {
        topic.topic: console.rates.measure(
            topic.topic_id, now_s, sum(part.end_offset for part in topic.partitions)
        )
        for topic in found
        if not isinstance(topic, TxnlogError)
    }
    return console.page(
        request,
        "topics.html",
        {
            "title": "Topics",
            "topics": [topic for topic in found if not isinstance(topic, TxnlogError)],
            "errors": [topic for topic in found if isinstance(topic, TxnlogError)],
            "rates": rates,
            "default_format": topic_setting({}, "record.format"),
            "find": wanted,
            "paged": paged,
        },
    )


def show_topic(console: Console, request: Request) -> Response:
    """A topic: its partitions, its columns, who holds it back."""
    topic = console.store.topics.describe(request.path_params["topic"])
    stable_offsets = console.store.transactions.stable_offsets(topic.topic)
    held = [(stable, holder) for stable in stable_offsets for holder in stable.holders]
    return console.page(
        request,
        "topic.html",
        {
            "title": topic.topic,
            "topic": topic,
            "paged": page_of(request, topic.partitions, size=_LISTED),
            "held": held[:_LISTED],
            "held_count": len(held),
            "most_offsets": max((part.end_offset for part in topic.partitions), default=0),
        },
    )


def show_settings(console: Console, request: Request) -> Response:
    """A topic's settings, and where each comes from."""
    topic = console.store.topics.describe(request.path_params["topic"])
    return console.page(
        request,
        "topic_settings.html",
        {"title": topic.topic, "settings": topic_settings(topic.config)},
    )


@dataclass(frozen=True, slots=True)
class TopicReader:
    """A group as far as it reads a topic. ``lag`` is that in the topic."""

    group: GroupDescription
    offsets: Sequence[GroupOffset]
    members: Sequence[MemberDescription]

    @classmethod
    def of(cls, group: GroupDescription, topic: str) -> TopicReader:
        """A group's offsets in a topic, and its members that read it."""
        return cls(
            group,
            [offset for offset in group.offsets if offset.topic == topic],
            [member for member in group.members if topic in member.topics],
        )

    @property
    def lag(self) -> int:
        """The lag of the group in this topic."""
        return sum(offset.lag or 0 for offset in self.offsets)


def show_readers(console: Console, request: Request) -> Response:
    """The groups that read a topic; the log of each group is read to know them."""
    topic = console.store.topics.describe(request.path_params["topic"]).topic
    found = [*console.store.groups.describe_all().with_errors()]
    known = [TopicReader.of(group, topic) for group in found if not isinstance(group, TxnlogError)]
    readers = [reader for reader in known if reader.offsets or reader.members]
    return console.page(
        request,
        "topic_groups.html",
        {
            "title": topic,
            "paged": page_of(request, sorted(readers, key=lambda reader: -reader.lag)),
            "errors": [group for group in found if isinstance(group, TxnlogError)],
        },
    )


@dataclass(frozen=True, slots=True)
class TopicWriter:
    """A producer that a topic remembers: what it last did there.

    ``transactional_id`` is empty for one that writes without transactions.
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str
    partitions: Sequence[int]
    last_at_ms: int
    is_open: bool


def show_writers(console: Console, request: Request) -> Response:
    """Who has written to a topic lately, newest first; ids are looked up in their logs."""
    topic = request.path_params["topic"]
    known = console.store.transactions.producers(topic)
    ids = console.store.transactions.list().with_errors() if known else ()
    names = {
        found.producer_id: found.transactional_id
        for found in ids
        if not isinstance(found, TxnlogError)
    }
    by_id: dict[int, list[ProducerDescription]] = {}
    for producer in known:
        by_id.setdefault(producer.producer_id, []).append(producer)
    writers = [
        TopicWriter(
            number,
            max(producer.producer_epoch for producer in own),
            names.get(number, ""),
            [producer.partition for producer in own],
            max(producer.last_at_ms for producer in own),
            any(producer.transaction for producer in own),
        )
        for number, own in by_id.items()
    ]
    writers.sort(key=lambda writer: (-writer.last_at_ms, writer.producer_id))
    return console.page(
        request, "topic_writers.html", {"title": topic, "paged": page_of(request, writers)}
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Converts offsets to positions in a picture."""

    start: int
    end: int

    @classmethod
    def of(cls, segments: SegmentOutline, stable: StableOffset) -> Scale:
        """A picture of all offsets that are there, also those before a log start in a segment."""
        starts = [stable.log_start_offset, *segments.base_offsets[:1].tolist()]
        return cls(min(starts), max(stable.end_offset, min(starts) + 1))

    def x(self, offset: int) -> float:
        """The position of an offset, in the picture's units."""
        return (offset - self.start) * _PICTURE_WIDTH / (self.end - self.start)

    def lanes(
        self, offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Which of the picture's narrowest bars each offset falls into."""
        return ((offsets - self.start) * (_MOST_BARS / (self.end - self.start))).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Bar:
    """Segments that lie side by side and fared alike, drawn as one."""

    x: float
    width: float
    outcome: str
    segment_count: int
    title: str
    """What is said of it where a mouse rests."""


@dataclass(frozen=True, slots=True)
class Line:
    """An offset that is marked in the picture."""

    x: float
    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Tick:
    """An offset that an index file knows the place of."""

    x: float
    title: str


def show_partition(console: Console, request: Request) -> Response:
    """A partition: its segments along the offsets, and what is open in it."""
    name, number = request.path_params["topic"], request.path_params["partition"]
    (stable,) = console.store.transactions.stable_offsets(name, number)
    log = console.store.logs.fresh_topic(name)
    segments = outline_partition(log, number)
    paged = page_of(request, range(len(segments))[::-1], size=_LISTED)
    scale = Scale.of(segments, stable)
    listed = _describe(log, number, segments, paged.items)
    indexed = "index" in request.query_params
    return console.page(
        request,
        "partition.html",
        {
            "title": f"{name}:{number}",
            "topic": name,
            "partition": number,
            "stable": stable,
            "bars": draw_bars(segments, scale),
            "lines": draw_lines(stable, scale),
            "width": _PICTURE_WIDTH,
            "paged": paged,
            "listed": listed,
            "ticks": draw_ticks(console.store.storage, listed, scale) if indexed else None,
            "indexed_segments": _INDEXED,
            "segment_count": len(segments),
        },
    )


def _describe(
    log: TopicLog, partition: int, segments: SegmentOutline, places: Sequence[int]
) -> list[SegmentDescription]:
    """Descriptions of adjacent segments, newest first, as the page lists them."""
    if not places:
        return []
    start = int(segments.base_offsets[places[-1]])
    end = int(segments.end_offsets[places[0]])
    return describe_segments_within(log, partition, start, end)[::-1]


def draw_bars(segments: SegmentOutline, scale: Scale) -> list[Bar]:
    """Segments as bars along the offsets: small neighbours together, so that a page can hold them.

    What fared differently is drawn apart, however small it is.
    """
    if not len(segments):
        return []
    outcomes = np.where(segments.undecided, 2, segments.aborted)
    lanes = scale.lanes(segments.base_offsets)
    differs = (np.diff(outcomes) != 0) | (np.diff(lanes) != 0)
    firsts = np.flatnonzero(np.append(True, differs)).tolist()
    bars = []
    for first, behind in zip(firsts, [*firsts[1:], len(segments)], strict=True):
        base, end = int(segments.base_offsets[first]), int(segments.end_offsets[behind - 1])
        outcome = _OUTCOMES[outcomes[first]]
        count = behind - first
        some = f"segment {segments.names[first]}" if count == 1 else f"{count} segments"
        title = f"{some}, {outcome}, offsets {base} to {end - 1}"
        width = max(scale.x(end) - scale.x(base), _LEAST_WIDTH)
        bars.append(Bar(scale.x(base), width, outcome, count, title))
    return bars


def draw_ticks(
    storage: Storage, segments: Sequence[SegmentDescription], scale: Scale
) -> list[Tick]:
    """The offsets that the offset indexes of the first segments know, once where they coincide."""
    found: dict[str, Tick] = {}
    for segment in segments[:_INDEXED]:
        for entry in dump_placed_indexes(storage, segment):
            if entry.kind in ("offset", "page") and entry.offset is not None:
                x = scale.x(entry.offset)
                title = f"index of {segment.name}: offset {entry.offset} at {entry.position} bytes"
                found.setdefault(f"{x:.0f}", Tick(x, title))
    return [*found.values()]


def draw_lines(stable: StableOffset, scale: Scale) -> list[Line]:
    """Where the log starts, where read_committed stops, where it ends."""
    return [
        Line(scale.x(offset), name, offset)
        for name, offset in (
            ("start", stable.log_start_offset),
            ("stable", stable.last_stable_offset),
            ("end", stable.end_offset),
        )
    ]
