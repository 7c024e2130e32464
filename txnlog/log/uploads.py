"""Uploads until an entry places them, and notes of those that vacuum is about to delete.

What tasks send to each other is plain data. Notes are of segments to which nothing refers any more:
one precedes every deletion, for two reasons. The storage's own time of the note tells since when
readers that are pinned have been the only ones that need the files. And a writer that has slept
since its uploads finds it: vacuum notes a candidate and reads the log afterwards, the writer puts
its entry and reads the notes afterwards, so one of the two sees the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from txnlog import names
from txnlog.clock import Clock
from txnlog.config import WriterCodec
from txnlog.errors import CorruptEntry, ObjectNotFound, StorageError, UploadExpired
from txnlog.limits import (
    AnyNumber,
    CounterOrNone,
    Name,
    PartitionNumber,
    TimeMs,
)
from txnlog.names import OWN_FILE, FileKey, SegmentRef, TopicPartition
from txnlog.schema import TopicSchema
from txnlog.state.producers import ProducerRef
from txnlog.state.segment import StoredSegment
from txnlog.state.transaction import new_producer_id
from txnlog.storage import envelope
from txnlog.storage.base import Storage, lasts
from txnlog.storage.create_once import create_once

if TYPE_CHECKING:
    from txnlog.segments.writer import SegmentSummary


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What an uploader must know about a topic. Plain data, to be sent to Spark's tasks.

    ``schema`` is that of a typed topic; else records have a key and a value.
    """

    topic: str
    topic_id: str
    partitions: int
    config: dict[str, str]
    schema: TopicSchema | None = None

    @property
    def schema_version(self) -> int:
        """How many schemas the topic had before this one."""
        return 0 if self.schema is None else self.schema.version

    def with_codec(self, codec: WriterCodec | None) -> TopicSpec:
        """The topic for a writer that has chosen a codec. Raises InvalidConfig."""
        return self if codec is None else replace(self, config=codec.override(self.config))


@dataclass(frozen=True, slots=True)
class UploadedSegment:
    """A segment whose files are uploaded and that no log entry names yet.

    ``topic_id`` is that of the topic it was made for: it must not land in a later topic of the same
    name. Segments that share a file are placed by one entry, or not at all. ``begun_ms`` is when
    the upload began, by its writer's clock; None: not known. ``history`` is that of the storage
    that it was uploaded to: in another one it may be lost.
    """

    topic: Name
    topic_id: Name
    partition: PartitionNumber
    stored: StoredSegment
    begun_ms: TimeMs | None = None
    history: CounterOrNone = -1

    @classmethod
    def of(
        cls,
        summary: SegmentSummary,
        spec: TopicSpec,
        partition: int,
        name: str,
        begun_ms: int,
        position: int = OWN_FILE,
        *,
        history: int,
    ) -> UploadedSegment:
        """The segment that a writer has just finished."""
        stored = StoredSegment(
            name,
            summary.record_count,
            summary.size_bytes,
            summary.min_timestamp_ms,
            summary.max_timestamp_ms,
            summary.batch_count,
            summary.tag,
            position,
        )
        return cls(spec.topic, spec.topic_id, partition, stored, begun_ms, history)

    @property
    def ref(self) -> SegmentRef:
        """The segment's place, from which the names of its files follow."""
        return SegmentRef(self.topic, self.partition, self.stored.name, self.stored.position)

    @property
    def files(self) -> list[str]:
        """The names of its files within the store; one may be shared with others."""
        return self.ref.files(self.stored.batch_count, self.stored.size_bytes)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an append went: its entry, and the offsets of each partition it wrote to.

    ``entry`` is None if it is not known: the append was placed before, or by another writer. Within
    a transaction it is known, unless that has ended and was moved to manifests since.
    """

    entry: int | None
    offsets: dict[TopicPartition, range]


@dataclass(slots=True)
class IdempotentWriter:
    """A producer without a transaction, as one topic knows it: its id and its next sequences.

    For one append at a time; :meth:`TopicLog.place` moves it on when it has placed one.
    """

    producer: ProducerRef
    sequences: dict[int, int] = field(default_factory=dict)

    @classmethod
    def new(cls, token: str) -> IdempotentWriter:
        """One that has written nothing yet, with an id made of a random token."""
        return cls(ProducerRef(new_producer_id(token), 0))

    def begin_anew(self, token: str) -> None:
        """Become a :meth:`new` one."""
        self.producer, self.sequences = ProducerRef(new_producer_id(token), 0), {}


RECHECK_AFTER_MS = 3_600_000
"""A writer that places older uploads checks that they still exist."""
_PER_NOTE = 10_000

Stage = Literal["candidate", "unplaced", "released"]

_logger = logging.getLogger(__name__)


class Retired(msgspec.Struct, frozen=True, tag_field="kind", tag="retired"):
    """Segments (each a partition and a name) to which the topic no longer refers.

    A file that segments share is named in their place, by SHARED and their name, when all of them
    are meant. ``stage`` is ``released`` if an entry has placed them and another one has released
    them; ``candidate`` if they are so old that nobody should place them: a writer that does so from
    now on is refused, but one may have done so just before; ``unplaced`` if the log, read after the
    candidate's note was put, did not refer to them: so it never will. ``topic_id`` is that of the
    topic then; empty if there was none.
    """

    nonce: Name
    at_ms: TimeMs
    topic_id: Name
    stage: Stage
    segments: Annotated[tuple[FileKey, ...], AnyNumber]


_DECODER = msgspec.json.Decoder(Retired)


@dataclass(frozen=True, slots=True)
class Note:
    """A note that was found; ``retired`` is None if it is damaged, or ``unread``, and why."""

    path: str
    retired: Retired | None
    unread: StorageError | None = None


def put_notes(
    storage: Storage,
    clock: Clock,
    topic: str,
    topic_id: str | None,
    segments: Sequence[FileKey],
    stage: Stage,
) -> list[Note]:
    """Note that the topic does not refer to these segments; see :class:`Retired`.

    Raises StorageError: some of it may be noted.
    """
    notes = []
    for first in range(0, len(segments), _PER_NOTE):
        some = tuple(segments[first : first + _PER_NOTE])
        nonce = clock.token()
        note = Retired(nonce, clock.now_ms(), topic_id or "", stage, some)
        path = names.retired_note(topic, nonce)
        create_once(storage, path, envelope.encode(note), clock)
        notes.append(Note(path, note))
    return notes


def read_notes(storage: Storage, topic: str) -> list[Note]:
    """All notes of a topic. Raises UnsupportedVersion: a newer txnlog has put one."""
    folder = names.retired_folder(topic)
    paths = [f"{folder}/{name}" for name in storage.list_names(folder)]
    found = storage.gather([partial(_read, storage, path) for path in paths])
    return [note for note in found if note is not None]


def _read(storage: Storage, path: str) -> Note | None:
    try:
        return Note(path, envelope.decode(storage.get(path), _DECODER, path))
    except ObjectNotFound:
        return None  # its segments are gone by now
    except CorruptEntry as error:
        _logger.warning("%s; it says nothing any more", error)
        return Note(path, None)
    except StorageError as error:
        if not lasts(error):
            raise
        _logger.warning("%s; what it names is found by its age", error)
        return Note(path, None, error)


def check_history(storage: Storage, segments: Iterable[UploadedSegment]) -> None:
    """Raise UploadExpired if one was uploaded before an unclean election: it may be lost."""
    history = storage.history()
    for segment in segments:
        if segment.history != history:
            raise UploadExpired(
                f"topic {segment.topic!r}: the records were uploaded before or after the unclean "
                f"election of epoch {max(history, segment.history)}, and this process has begun on "
                "the other side of it: they may be lost. Nothing was placed: reopen the store, "
                "and write them again"
            )


class UploadCheck:
    """Checks, before and after uploads are placed, that vacuum has not taken them for orphans.

    Costs nothing while they are young. ``begun_ms``: when they began, by their writers' clocks;
    None: not known.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        topic: str,
        segments: Sequence[SegmentRef],
        begun_ms: Sequence[int | None],
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._topic = topic
        self._paths = {segment.file_key: segment.paths.log for segment in segments}
        told = [at_ms for at_ms in begun_ms if at_ms is not None]
        self._begun_ms = (min(told), max(told)) if told else ()

    def before(self, *, in_doubt: bool = False) -> None:
        """Raise UploadExpired if a segment is gone or noted: nothing may be placed.

        ``in_doubt``: an earlier attempt may have placed it, which the caller looks for.
        """
        if self._is_old() and (lost := next(self._find_lost(), None)):
            what = "Nothing was placed"
            if in_doubt:
                what = (
                    "An earlier attempt has not placed it either, nor will others, unless their "
                    "clocks are wrong by an hour"
                )
            raise UploadExpired(
                f"topic {self._topic!r}: the uploaded records waited so long for their commit that "
                f"vacuum took them for left behind: {lost} is deleted or about to be. {what}: "
                "write them again, and give `maintain` a longer orphan age if your jobs need it"
            )

    def after(self, entry: int | None) -> None:
        """Raise StorageError if a placed segment is gone or noted: it is lost.

        ``entry`` is the one that has placed it; None: an earlier one, which is settled by now.
        """
        if self._is_old() and (lost := next(self._find_lost(), None)):
            placed_by = "an earlier entry" if entry is None else f"entry {entry}"
            error = StorageError(
                f"topic {self._topic!r}: {placed_by} has placed {lost}, which vacuum took for left "
                "behind meanwhile, because this process slept: it is deleted or about to be. "
                "Abort the transaction; without one delete these records and write them again"
            )
            error.retriable = False
            raise error

    def _is_old(self) -> bool:
        now_ms = self._clock.now_ms()
        return any(abs(now_ms - at_ms) > RECHECK_AFTER_MS for at_ms in self._begun_ms)

    def _find_lost(self) -> Iterator[str]:
        # In this order: a note is deleted only when the files that it names are gone.
        notes = read_notes(self._storage, self._topic)
        noted = {
            tuple(key) for note in notes for key in (note.retired.segments if note.retired else ())
        }
        paths = self._paths
        for note in notes:
            if note.unread is not None and not self._is_before_uploads(note.path):
                raise note.unread
        yield from (path for key, path in paths.items() if key in noted)
        there = self._storage.gather([partial(self._exists, path) for path in paths.values()])
        yield from (path for path, found in zip(paths.values(), there, strict=True) if not found)

    def _is_before_uploads(self, note: str) -> bool:
        """Whether a note is older than all of the files, and so can name none of them."""
        asked = [note, *self._paths.values()]
        try:
            put_ms, *begun_ms = self._storage.gather(
                [partial(self._storage.modified_ms, path) for path in asked]
            )
        except ObjectNotFound:
            return False
        return put_ms is not None and all(
            at_ms is not None and put_ms <= at_ms for at_ms in begun_ms
        )

    def _exists(self, path: str) -> bool:
        try:
            self._storage.size(path)
        except ObjectNotFound:
            return False
        return True
