"""Purging: every record of some keys goes from a topic, as when a person has to be deleted.

docs/PROTOCOL.md ("Rewrites") says how. If one segment of a shared file has such records, all of its
segments are written again, or the file would stay. That is also done if a part of it belongs to no
segment any more, because that part may hold anything. Readers of the past may use segments that
compaction has replaced, and feeds would miss records; so entries say that they purge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from txnlog.admin.compaction.cleaner import kept_records
from txnlog.admin.compaction.record_keys import RecordKeys
from txnlog.admin.compaction.span_writer import SpanWriter
from txnlog.admin.dry_run import logs_for
from txnlog.admin.joinable_segments import joining_limits
from txnlog.admin.live_segments import file_key, placed_files, placed_refs
from txnlog.admin.rewrite import OVERTAKEN, Replacement, Rewriting, rewriting_config
from txnlog.admin.vacuum import list_segment_files
from txnlog.columns.keys import Mask
from txnlog.columns.python_values import values_by_name
from txnlog.config import TopicConfig
from txnlog.errors import (
    CorruptRecord,
    InvalidOption,
    InvalidRecord,
    ObjectNotFound,
    StorageError,
)
from txnlog.hooks import registered
from txnlog.log.open_logs import Logs
from txnlog.log.uploads import TopicSpec
from txnlog.names import (
    OWN_FILE,
    TABLES,
    FileKey,
    SegmentRef,
    day_of_tables,
    is_of_tables,
    table_folder,
)
from txnlog.read.latest import look_up
from txnlog.read.pin import pin_topics
from txnlog.read.plan import SegmentRange
from txnlog.read.rows import Rows
from txnlog.read.scan_reader import DamagedRecords
from txnlog.read.stored_reader import read_stored
from txnlog.read.topic_view import TopicView
from txnlog.schema import TopicSchema
from txnlog.segments.errors import UnsupportedRecordFormat
from txnlog.segments.reader import SegmentBatch
from txnlog.segments.records import CONVERSION_ERRORS, normalize
from txnlog.state.segment import RewrittenFile, Segment, records_in
from txnlog.state.topic import Partition, TopicState
from txnlog.state.topic_entries import Purged
from txnlog.tables.table_files import copied_segment, is_copy, segment_of_copy
from txnlog.write.row_values import make_column, make_rows, plain_columns
from txnlog.write.typed_records import TypedRecords

MOST_KEY_BYTES: Final = 64 << 20
_MOST_NEW_BYTES: Final = 1 << 20
"""Of keys that were not looked for among the others yet; or as many as these have."""
_BYTES_PER_ENTRY: Final = 256 << 20
"""How much, or a segment more, is rewritten with one entry."""
_TURNS: Final = 8


@dataclass(frozen=True, slots=True)
class Purge:
    """What was purged from a partition (or would be). Sizes in bytes, before and after.

    ``record_count`` is the number of purged records that readers saw until then. ``purged_bytes``
    is None if nothing was done yet.
    """

    topic: str
    partition: int
    record_count: int
    segment_count: int
    size_bytes: int
    purged_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge has done, and where records of the keys may still be.

    ``undecided_count`` offsets belong to transactions that are not decided, or were appended
    meanwhile: they were not looked at. ``waiting_files`` is the number of files that new readers do
    not need, and that are not deleted yet: segments, and copies of them that a catalog has put.
    ``old_copies`` are incarnations that were put out of a store with replicas, such as 'r1-0', if
    they have such files, or if their roots do not answer. ``published`` is the topic's
    ``table.publish``: that table shows purged records until it is published again, and its older
    versions show them longer. Tables that were published by hand are not known, and standbys follow
    later. ``damaged`` are segments that cannot be read: they stay as they are, with purged records
    if they hold any.
    """

    topic: str
    partitions: tuple[Purge, ...]
    undecided_count: int
    waiting_files: int
    old_copies: tuple[str, ...] = ()
    published: str = ""
    damaged: tuple[DamagedRecords, ...] = ()


def purge_topic(logs: Logs, topic: str, keys: object, *, dry_run: bool = False) -> PurgeReport:
    """Purge the records of these keys. See ``Store.maintenance.purge``."""
    logs = logs_for(logs, dry_run=dry_run)
    wanted: pa.Array | None = None
    done: list[_Run] = []
    values_are_gone = False
    topic_id: str | None = None
    for _ in range(_TURNS):
        view = pin_topics(logs, [topic]).views[topic]
        with (log := logs.topic(topic)).lock:
            log.state.check_exists(topic, topic_id)
        topic_id = view.topic_id
        sizes = {
            key: sum(size_bytes for ending, _, size_bytes in files if ending == "log")
            for key, files in list_segment_files(logs.storage, topic).items()
        }
        if wanted is None:  # a stream of keys can be read no second time
            wanted = _keys(view, keys)
        runs: list[_Run] = []
        try:
            purging = _Purging(logs, view, wanted, sizes)
            runs = purging.find()
            if dry_run:
                purging.count(runs)
                done = runs
                break
            # What is restored of damage may be what a tombstone deletes.
            keeps = bool(purging.damaged) or (not values_are_gone and _needs_order(runs))
            is_over = purging.rewrite(runs, keeps_tombstones=keeps)
            if is_over and keeps and not purging.damaged:
                values_are_gone = True
                is_over = not any(run.has_tombstones for run in runs)
        except OVERTAKEN:
            is_over = False
        done += [run for run in runs if run.is_done]
        if is_over:
            break
    else:
        raise StorageError(
            f"topic {topic!r}: others rewrite its segments again and again; some records are "
            "purged: purge again when they have ended"
        )
    ends = zip(view.log_end_offsets, view.partitions, strict=True)
    undecided = sum(end - part.end_offset for end, part in ends)
    numbers = sorted({run.partition for run in done})
    found = tuple(
        _purge(topic, number, [run for run in done if run.partition == number], dry_run=dry_run)
        for number in numbers
    )
    waiting_files, old_copies, replaced = _waiting_files(logs, topic)
    if not dry_run and purging.is_in(replaced):
        _put_purged(logs, topic, view.topic_id)
    published = TopicConfig.of(view.config).table_publish
    damaged = tuple(purging.damaged.values())
    return PurgeReport(topic, found, undecided, waiting_files, old_copies, published, damaged)


def _needs_order(runs: Sequence[_Run]) -> bool:
    """Whether the purge takes several entries, and a key may be in several of its partitions.

    Then a tombstone in one partition could go before the older values in another.
    """
    partitions = {run.partition for run in runs}
    return len(partitions) > 1 and sum(run.size_bytes for run in runs) > _BYTES_PER_ENTRY


def _put_purged(logs: Logs, topic: str, topic_id: str) -> None:
    """Put the entry that says that keys were purged from the topic's current segments.

    From then on no reader ignores a rewrite and reads the segments that it replaced.
    """
    nonce = logs.clock.token()
    log = logs.topic(topic)

    def build(state: TopicState) -> Purged:
        state.check_exists(topic, topic_id)
        return Purged(nonce, logs.clock.now_ms())

    log.append(build)
    logs.tidy([log])


def _purge(topic: str, partition: int, runs: Sequence[_Run], *, dry_run: bool) -> Purge:
    return Purge(
        topic,
        partition,
        sum(run.record_count for run in runs),
        sum(len(run.segments) for run in runs),
        sum(run.size_bytes for run in runs),
        None if dry_run else sum(run.purged_bytes for run in runs),
    )


def _waiting_files(
    logs: Logs, topic: str
) -> tuple[int, tuple[str, ...], list[tuple[int, Segment]]]:
    """How many replaced files are not deleted yet, and the old copies of the store that hold more.

    The third result are the segments, by partition, that were replaced since the last purge and
    still exist, if their replacements may lack some of their records.
    """
    files = list_segment_files(logs.storage, topic)
    copies = [*_copies(logs, topic)]
    old = [one for hook in registered("old copies") for one in hook.list_old_copies(logs, topic)]
    # After the listings: what they have and the log does not is no file that was just placed.
    log = Logs(logs.storage, logs.config, logs.clock).topic(topic)
    log.refresh()
    state = log.whole_segments()
    placed = {copied_segment(ref.partition, one) for ref, one in placed_refs(topic, state)}
    waiting = [name for name in copies if segment_of_copy(name) not in placed]
    needed = placed_files(topic, state)
    old_copies = tuple(name for name, keys in old if keys is None or keys - needed)
    replaced = [
        (number, segment)
        for number, part in enumerate(state.partitions)
        for segment in _replaced(part, state.purge_end)
        if file_key(number, segment) in files
    ]
    return len(files.keys() - needed) + len(waiting), old_copies, replaced


def _replaced(part: Partition, purge_end: int) -> Iterator[Segment]:
    """The segments of a partition that held records after the last purge, and were replaced since.

    None if the replacements have all of their records; compaction leaves some out.
    """
    since = [rewrite.segment for rewrite in part.rewrites if rewrite.entry >= purge_end]
    if any(_kind(one)[0] or one.stored.is_empty for one in since):
        before = [rewrite for rewrite in part.rewrites if rewrite.entry < purge_end]
        held = {(one.stored.name, one.stored.position) for one in part.record_segments()}
        start, end = part.log_start_offset, part.end_offset
        for one in (*records_in(part.segments, before, start, end), *since):
            if not one.stored.is_empty and (one.stored.name, one.stored.position) not in held:
                yield one


def _copies(logs: Logs, topic: str) -> Iterator[str]:
    """The files that catalogs have put for rows which are in no Parquet file of their own."""
    for day in filter(None, map(day_of_tables, logs.storage.list_folders(TABLES))):
        for name, _ in logs.storage.list_all(table_folder(topic, day)):
            if is_copy(name) and is_of_tables(name):
                yield name


def _keys(view: TopicView, given: object) -> pa.Array:
    """The keys as bytes. Raises InvalidOption, InvalidRecord."""
    topic, schema = view.topic, view.schema
    fields = RecordKeys(schema).key_columns
    if not fields.names:
        raise InvalidOption(f"topic {topic!r} has a schema without a key: nothing names a record")
    keys = pa.array([], pa.binary())
    new = [keys]
    new_bytes = 0
    try:
        for batch in _batches(topic, schema, fields, given):
            chosen = batch.select(fields.names)
            if isinstance(given, Rows):
                chosen = chosen.filter(pc.is_valid(chosen.column(0)))
            if any(column.null_count for column in chosen.columns):
                raise InvalidRecord(f"topic {topic!r}: some of the keys are null, or lack a column")
            new.append(_keys_of(topic, schema, chosen))
            new_bytes += new[-1].nbytes
            if new_bytes > max(keys.nbytes, _MOST_NEW_BYTES):
                keys = _distinct(topic, new)
                new, new_bytes = [keys], 0
    except (*CONVERSION_ERRORS, KeyError, AttributeError) as error:
        raise InvalidRecord(
            f"topic {topic!r}: the keys must be a table, or a list of mappings, with the columns "
            f"{', '.join(fields.names)}: {error}"
        ) from error
    return _distinct(topic, new)


def _distinct(topic: str, keys: Sequence[pa.Array]) -> pa.Array:
    """Raises InvalidOption."""
    distinct = pa.chunked_array(keys).unique()
    if distinct.nbytes > MOST_KEY_BYTES:
        raise InvalidOption(
            f"topic {topic!r}: the keys take more than the {MOST_KEY_BYTES >> 20} MiB that a purge "
            "takes: give it fewer at once"
        )
    return distinct


def _batches(
    topic: str, schema: TopicSchema | None, fields: pa.Schema, given: object
) -> Iterator[pa.RecordBatch]:
    """Batches with the columns of the keys, among others."""
    rows = _rows(topic, fields.names, given)
    if rows is not None:
        if rows:
            yield _listed(topic, schema, fields.names, rows)
        return
    reader = given.to_reader() if isinstance(given, Rows) else pa.table(given).to_reader()
    for name in fields.names:
        reader.schema.field(name)  # also if there is no batch
    yield from reader


def _rows(topic: str, names: Sequence[str], given: object) -> Sequence[object] | None:
    """Keys of Python's values, as rows; None if they are Arrow's, or another library's.

    Raises InvalidRecord: a column is no list or array; of a text each letter would be a key.
    """
    if not isinstance(given, Mapping):
        return given if isinstance(given, list | tuple) else None
    columns = [given[name] for name in names]
    for name, column in zip(names, columns, strict=True):
        is_one = isinstance(column, str | bytes | bytearray | memoryview | Mapping)
        if is_one or not (hasattr(column, "__len__") and hasattr(column, "__getitem__")):
            raise InvalidRecord(
                f"topic {topic!r}: the keys' column {name!r} is a {type(column).__name__}, no list "
                f"or array: give {{{name!r}: [...]}}"
            )
    if all(isinstance(column, list | tuple) for column in columns):
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return None


def _listed(
    topic: str, schema: TopicSchema | None, names: Sequence[str], rows: Sequence[object]
) -> pa.RecordBatch:
    """The keys of mappings, each value as it is when it is sent. Raises InvalidRecord."""

    def make(some: Sequence[object]) -> dict[str, pa.Array]:
        given = values_by_name(some)
        values = {name: given.get(name, [None] * len(some)) for name in names}
        if schema is None:
            return plain_columns(topic, [{"key": key} for key in values["key"]])
        records = TypedRecords(topic, schema)
        return {name: make_column(records, of, name) for name, of in values.items()}

    return make_rows(rows, make)


def _keys_of(topic: str, schema: TopicSchema | None, batch: pa.RecordBatch) -> pa.Array:
    if schema is not None:
        return TypedRecords(topic, schema).keys_alone(batch)
    nothing = pa.nulls(batch.num_rows)
    try:
        return normalize(batch.append_column("value", nothing), now_ms=0).column("key")
    except UnsupportedRecordFormat as error:
        raise InvalidRecord(f"topic {topic!r}: {error}") from error


@dataclass(slots=True, eq=False)
class _Run:
    """Adjacent segments of a partition, to be written again as one or a few."""

    partition: int
    segments: list[Segment]
    record_count: int = 0
    purged_bytes: int = 0
    is_done: bool = False
    has_tombstones: bool = False
    size_bytes: int = field(init=False)
    least_ms: int = field(init=False)
    newest_ms: int = field(init=False)
    least_newest_ms: int = field(init=False)

    def __post_init__(self) -> None:
        stored = self.segments[0].stored
        self.size_bytes = stored.size_bytes
        self.least_ms, self.newest_ms = stored.min_timestamp_ms, stored.max_timestamp_ms
        self.least_newest_ms = self.newest_ms

    def takes(self, segment: Segment, limits: tuple[int, int, int]) -> bool:
        """Add a segment if it may be joined with the run; returns whether it was added.

        Segments are joined with others of the same kind, compacted or not, within the limits of
        :func:`joining_limits`: retention deletes whole segments.
        """
        most_bytes, most_ms, most_newest_ms = limits
        last = self.segments[-1]
        size_bytes = self.size_bytes + segment.stored.size_bytes
        least_ms = min(self.least_ms, segment.stored.min_timestamp_ms)
        newest_ms = max(self.newest_ms, segment.stored.max_timestamp_ms)
        least_newest_ms = min(self.least_newest_ms, segment.stored.max_timestamp_ms)
        if (
            segment.base_offset != last.end_offset
            or size_bytes > most_bytes
            or newest_ms - least_ms > most_ms
            or newest_ms - least_newest_ms > most_newest_ms
            or _kind(segment) != _kind(last)
        ):
            return False
        self.segments.append(segment)
        self.size_bytes, self.least_ms, self.newest_ms = size_bytes, least_ms, newest_ms
        self.least_newest_ms = least_newest_ms
        return True


def _kind(segment: Segment) -> tuple[bool, int]:
    """Whether a segment is compacted, and from when (ms) its tombstones may go."""
    rewritten = segment.stored.rewritten or RewrittenFile(0)
    return rewritten.is_compacted, rewritten.delete_horizon_ms


class _Purging:
    """One turn: what a view shows, the keys (binary), and the files' sizes in bytes."""

    def __init__(
        self, logs: Logs, view: TopicView, keys: pa.Array, sizes: Mapping[FileKey, int]
    ) -> None:
        config = rewriting_config(view.config)
        self._logs = logs
        self._view = view
        self._keys = keys
        self._sizes = sizes
        self.damaged: dict[tuple[int, int], DamagedRecords] = {}
        self._spec = TopicSpec(view.topic, view.topic_id, len(view.partitions), config, view.schema)
        self._record_keys = RecordKeys(view.schema)
        spans = {
            n: (part.log_start_offset, part.end_offset) for n, part in enumerate(view.partitions)
        }
        self._placed = view.placed(spans)

    def find(self) -> list[_Run]:
        """The runs to write again, of each partition the oldest first."""
        files = self._half_used()
        for partition, segments in self._placed.segments.items():
            # Whole segments: what was trimmed or aborted is in their files, too.
            parts = [
                self._part(partition, segment, is_whole=True)
                for segment in segments
                if not segment.stored.is_empty and not self._is_lost(partition, segment)
            ]
            for part, count in self._count_sound(parts):
                if count:
                    files.add(file_key(partition, part.segment))
        runs: list[_Run] = []
        for partition, segments in self._placed.segments.items():
            some = [segment for segment in segments if file_key(partition, segment) in files]
            runs += self._joined(partition, some)
        return runs

    def _joined(self, partition: int, segments: Sequence[Segment]) -> list[_Run]:
        """The segments that can be read, as runs of adjacent ones that may be joined."""
        most_bytes, most_ms, newest_ms = joining_limits(TopicConfig.of(self._view.config))
        limits = min(most_bytes, _BYTES_PER_ENTRY), most_ms, newest_ms
        runs: list[_Run] = []
        for segment in segments:
            if (partition, segment.base_offset) in self.damaged:
                continue
            if not runs or not runs[-1].takes(segment, limits):
                runs.append(_Run(partition, [segment]))
        return runs

    def _is_lost(self, partition: int, segment: Segment) -> bool:
        """Whether an aborted segment has no file: its writer slept until vacuum had deleted it."""
        if segment.entry not in self._placed.hidden_entries:
            return False
        if self._sizes.get(file_key(partition, segment)):
            return False
        stored = segment.stored
        ref = SegmentRef(self._view.topic, partition, stored.name, stored.position)
        try:
            self._logs.storage.size(ref.paths.log)
        except ObjectNotFound:
            return True
        return False

    def _half_used(self) -> set[FileKey]:
        """The shared files of which a part belongs to no segment that is placed."""
        placed: Counter[FileKey] = Counter()
        for partition, segments in self._placed.segments.items():
            for segment in segments:
                if segment.stored.position != OWN_FILE:
                    placed[file_key(partition, segment)] += segment.stored.size_bytes
        return {key for key, size_bytes in placed.items() if size_bytes < self._sizes.get(key, 0)}

    def count(self, runs: Sequence[_Run]) -> None:
        """Count what would be purged."""
        for run in runs:
            found = self._count_sound(self._visible(run))
            run.record_count = sum(count for _, count in found)

    def rewrite(self, runs: list[_Run], *, keeps_tombstones: bool = False) -> bool:
        """Rewrite runs without the purged records; False if others have rewritten some meanwhile.

        ``keeps_tombstones``: these stay for the next turn, and the runs say whether they have any.
        If a segment of a run turns out to be damaged, the run's other segments are rewritten alone,
        and tombstones stay: the damaged one may be restored, with records that they delete.
        """
        logs, spec = self._logs, self._spec
        rewriting = Rewriting(logs, logs.topic(spec.topic), spec.topic_id)
        waiting: list[_Run] = []
        try:
            number = 0
            while number < len(runs) or waiting:
                if number < len(runs):
                    run = runs[number]
                    try:
                        spans = self._write(run, keeps_tombstones)
                    except CorruptRecord:
                        runs[number : number + 1] = self._joined(run.partition, run.segments)
                        if not keeps_tombstones:  # from here on; what waits is written again
                            keeps_tombstones = True
                            rewriting.discard()
                            rewriting = Rewriting(logs, logs.topic(spec.topic), spec.topic_id)
                            number -= len(waiting)
                            for one in waiting:
                                one.record_count = 0
                            waiting = []
                        continue
                    rewriting.add(run.partition, run.segments, spans)
                    waiting.append(run)
                    number += 1
                if rewriting.input_bytes >= _BYTES_PER_ENTRY or number == len(runs):
                    if not rewriting.put(purges=any(one.record_count for one in waiting)):
                        return False
                    for one in waiting:
                        one.is_done = True
                    waiting = []
        except BaseException:
            rewriting.discard()
            raise
        return True

    def _write(self, run: _Run, keeps_tombstones: bool) -> list[Replacement]:
        is_compacted, horizon_ms = _kind(run.segments[0])
        known = (r.judged_end for s in run.segments if (r := s.stored.rewritten))
        judged_end = max(known, default=0)
        writer = SpanWriter(
            self._logs.storage,
            self._spec,
            run.partition,
            self._logs.clock,
            start=run.segments[0].base_offset,
            delete_horizon_ms=horizon_ms,
        )
        columns = self._record_keys.columns
        parts, done = self._visible(run), 0
        try:
            for part, batches in read_stored(self._logs.storage, parts, columns):
                for batch, found in self._are_purged(batches):
                    purged = found
                    if keeps_tombstones:
                        purged = found & ~self._record_keys.deleting(batch.records)
                        run.has_tombstones |= bool((found & ~purged).any())
                    run.record_count += int(purged.sum())
                    writer.append(*kept_records(part, batch, ~purged, columns))
                done += 1
            spans = writer.finish(run.segments[-1].end_offset)
        except BaseException as error:
            writer.discard()
            if isinstance(error, CorruptRecord):
                self._note(parts[done], error)
            raise
        run.purged_bytes = sum(span.uploaded.stored.size_bytes for span in spans if span.uploaded)
        purged_from = max(segment.source_entry for segment in run.segments)
        return [
            replace(span, is_compacted=is_compacted, judged_end=judged_end, purged_from=purged_from)
            for span in spans
        ]

    def _visible(self, run: _Run) -> list[SegmentRange]:
        """The ranges of a run that readers see."""
        return [
            self._part(run.partition, segment, is_whole=False)
            for segment in run.segments
            if segment.entry not in self._placed.hidden_entries and not segment.stored.is_empty
        ]

    def _part(self, partition: int, segment: Segment, *, is_whole: bool) -> SegmentRange:
        start = 0 if is_whole else self._view.partitions[partition].log_start_offset
        return SegmentRange(
            self._view.topic,
            partition,
            segment,
            max(segment.base_offset, start),
            segment.end_offset,
            topic_id=self._view.topic_id,
            hides_aborted=segment.stored.has_aborted and not is_whole,
        )

    def is_in(self, segments: Iterable[tuple[int, Segment]]) -> bool:
        """Whether segments that were replaced have records of the keys, or cannot be read."""
        parts = [self._part(number, segment, is_whole=True) for number, segment in segments]
        try:
            return any(count for _, count in self._count(parts))
        except (CorruptRecord, *OVERTAKEN):
            return True

    def _note(self, part: SegmentRange, error: CorruptRecord) -> None:
        self.damaged[part.partition, part.segment.base_offset] = DamagedRecords(
            part.topic, part.partition, part.start_offset, part.stop_offset, str(error)
        )

    def _count_sound(self, parts: Sequence[SegmentRange]) -> Iterator[tuple[SegmentRange, int]]:
        """How many records each part has that are to be purged; what is damaged is noted."""
        done = 0
        while done < len(parts):
            try:
                for found in self._count(parts[done:]):
                    yield found
                    done += 1
            except CorruptRecord as error:
                self._note(parts[done], error)
                done += 1

    def _count(self, parts: Sequence[SegmentRange]) -> Iterator[tuple[SegmentRange, int]]:
        """How many records each has that are to be purged."""
        columns = self._record_keys.key_columns
        for part, batches in read_stored(self._logs.storage, parts, columns):
            yield part, sum(int(purged.sum()) for _, purged in self._are_purged(batches))

    def _are_purged(self, batches: Iterable[SegmentBatch]) -> Iterator[tuple[SegmentBatch, Mask]]:
        """Each batch, and which of its records are to be purged."""
        looked_up = look_up(
            batches,
            self._record_keys.keys,
            lambda keys: pc.is_in(keys, value_set=self._keys),
            len(self._keys),
        )
        return ((batch, found.to_numpy(zero_copy_only=False)) for batch, found in looked_up)
