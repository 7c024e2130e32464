"""Snapshots: topics pinned at one consistent cut, from which any number of scans can be made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txnlog import display
from txnlog.arguments import names_wrong_arguments
from txnlog.errors import InvalidOption, UnknownTopicOrPartition
from txnlog.log.open_logs import Logs
from txnlog.names import TopicPartition
from txnlog.read.isolation_levels import Consistency, IsolationLevel
from txnlog.read.latest import check_has_key
from txnlog.read.offset_for_time import OffsetAndTimestamp, offset_for_time
from txnlog.read.pin import ROUNDS, PinnedTopics, pin_topics
from txnlog.read.plan import matching_ranges, scan_columns
from txnlog.read.topic_view import Offsets, TopicView
from txnlog.scan import Scan
from txnlog.storage.base import Storage

if TYPE_CHECKING:
    import pyarrow.compute
    import pyarrow.dataset

    from txnlog.read.changed_rows import ChangeFeed
    from txnlog.read.snapshot_token import SnapshotToken


@names_wrong_arguments()
class Snapshot:
    """Topics as they were at one time. What it shows never changes.

    It knows where the segments are; records are read when it is scanned. ``consistency`` says what
    its partitions are together: ``"instant"``, the state at one instant, unless others write all
    the while; then ``"causal"``, or ``"atomic"``, see docs/ISOLATION.md. It is atomic at level
    ``snapshot``, and at level ``read_committed`` unless transactions overlap for so long that no
    such cut is fresh enough, or can still be read. Then it is ``"none"``: each partition shows what
    lies before its own last stable offset, as in Kafka.
    """

    def __init__(
        self, storage: Storage, pinned: PinnedTopics, isolation_level: IsolationLevel
    ) -> None:
        self._storage = storage
        self._views = pinned.views
        self.isolation_level = isolation_level
        self.consistency: Consistency = pinned.consistency

    def __repr__(self) -> str:
        return (
            f"Snapshot({self.topics}, isolation_level={self.isolation_level!r}, "
            f"consistency={self.consistency!r})"
        )

    def _repr_html_(self) -> str:
        rows = [
            (topic, partition, start, view.end_offsets[partition])
            for topic, view in self._views.items()
            for partition, start in view.beginning_offsets.items()
        ]
        caption = f"Snapshot, {self.isolation_level}{'' if self.is_atomic else ', not atomic'}"
        return display.table(caption, ("topic", "partition", "from", "to"), rows)

    @property
    def is_atomic(self) -> bool:
        """Whether each transaction shows whole or not at all."""
        return self.consistency != "none"

    @property
    def topics(self) -> list[str]:
        """The names of the topics, in the order they were asked for."""
        return list(self._views)

    def view(self, topic: str) -> TopicView:
        """One pinned topic. Raises UnknownTopicOrPartition if the snapshot does not have it."""
        try:
            return self._views[topic]
        except KeyError:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} is not in this snapshot of {', '.join(self._views)}"
            ) from None

    def partitions(self, topic: str) -> list[int]:
        """The numbers of the topic's partitions."""
        return list(range(len(self.view(topic).partitions)))

    def check_partition(self, where: TopicPartition) -> None:
        """Raise UnknownTopicOrPartition unless the snapshot has this partition."""
        self.view(where.topic).check_partition(where.partition)

    def beginning_offsets(self, topic: str) -> dict[int, int]:
        """The log start offset of each partition."""
        return self.view(topic).beginning_offsets

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Where the snapshot ends in each partition: the offset after its last record."""
        return self.view(topic).end_offsets

    def token(self) -> str:
        """A short string that brings this snapshot back: ``store.snapshot(topics, at=token)``.

        It holds the offsets and ids of all its topics, needs no escaping in URLs, and is valid for
        as long as the records are there. See docs/TIME_TRAVEL.md.

        Raises:
            InvalidOption: the level is not ``read_committed``, so offsets cannot say what the
                snapshot shows.
        """
        if self.isolation_level != "read_committed":
            raise InvalidOption(
                f"a snapshot at level {self.isolation_level!r} is not a prefix of its partitions, "
                "so offsets cannot tell what it shows: take one at level 'read_committed'"
            )
        from txnlog.read.snapshot_token import SnapshotToken

        return SnapshotToken.of(self._views.values(), self.consistency).encode()

    def scan(
        self,
        topic: str,
        starting_offsets: Offsets = None,
        ending_offsets: Offsets = None,
        columns: Sequence[str] | None = None,
        *,
        filter: pyarrow.compute.Expression | None = None,  # noqa: A002 - as pyarrow calls it
        as_json: bool = False,
        latest: bool = False,
    ) -> Scan:
        """Plan a scan of one topic within this snapshot; see :meth:`txnlog.Store.scan`.

        With ``as_json`` a topic with a schema is read as if it had none: the value of a record is
        a JSON object of its columns.

        With ``latest`` there is one row for each key, its newest record in the range: the greatest
        offset within a partition, and the greatest timestamp among the partitions that it is in.
        None for a key whose newest record deletes it, and for records without a key. The filter is
        applied to these rows: a key whose newest record does not match has none, though an older
        one may match. The keys of the whole range are read first, then the segments that hold a
        newest record. Memory is for the distinct keys: about 300 bytes and five times the key's
        size for each.

        Raises:
            OffsetOutOfRange: an offset lies below the log's start or beyond its end.
            InvalidOption: a malformed offset, column or filter, or ``latest`` and there is no key.
        """
        view = self.view(topic)
        chosen = scan_columns(columns, view.schema, as_json=as_json, row_filter=filter)
        start, end = view.starting_offsets(starting_offsets), view.ending_offsets(ending_offsets)
        ranges = view.visible_ranges(start, end)
        if latest:
            # The filter is for the newest records, which are found in all of them.
            check_has_key(topic, chosen)
            return Scan(self._storage, ranges, chosen, start, end, latest=True)
        return Scan(self._storage, matching_ranges(ranges, chosen), chosen, start, end)

    def dataset(self, topic: str) -> pyarrow.dataset.Dataset:
        """The topic as a pyarrow dataset; its files are read when it is scanned.

        For a topic with a schema it has the schema's columns, otherwise key, value, timestamp and
        headers. Only Parquet files (``record.format=parquet``) are pruned and filtered while they
        are read. Files and pages are checked against their checksums: reading a file that is not
        the one that was written raises CorruptRecord or OSError.

        Raises:
            UnknownTopicOrPartition: the snapshot does not have it.
            InvalidOption: a column has a name that Arrow's datasets give to one of their own.
        """
        from txnlog.read.dataset import make_dataset

        view = self.view(topic)
        plain = ("key", "value", "timestamp", "headers")
        columns = scan_columns(plain if view.schema is None else None, view.schema)
        ranges = view.visible_ranges(view.beginning_offsets, view.end_offsets)
        return make_dataset(self._storage, ranges, columns)

    def offset_for_time(
        self, where: TopicPartition, timestamp_ms: int
    ) -> OffsetAndTimestamp | None:
        """The first record of a partition at or after a time; None if there is none.

        Segments whose records are all older are not read.
        """
        view = self.view(where.topic)
        return offset_for_time(view, self._storage, where.partition, timestamp_ms)


def take_snapshot(
    logs: Logs,
    topics: Sequence[str],
    isolation_level: IsolationLevel = "read_committed",
    *,
    leave_out_missing: bool = False,
    may_be_none: bool = False,
    refreshed: bool = False,
    rounds: int = ROUNDS,
    at: object = None,
) -> Snapshot:
    """Pin topics and make a snapshot of them; see :func:`txnlog.read.pin.pin_topics`.

    ``at``: as they were at a moment; see :mod:`txnlog.read.time_travel`, whose errors it raises.
    """
    if at is not None:
        if isolation_level != "read_committed":
            raise InvalidOption(
                f"at is for level 'read_committed', not {isolation_level!r}: what was undecided "
                "at a moment of the past is decided by now"
            )
        from txnlog.read.time_travel import parse_at, pin_at

        return Snapshot(logs.storage, pin_at(logs, topics, parse_at(at)), isolation_level)
    pinned = pin_topics(
        logs,
        topics,
        isolation_level,
        leave_out_missing=leave_out_missing,
        may_be_none=may_be_none,
        refreshed=refreshed,
        rounds=rounds,
    )
    return Snapshot(logs.storage, pinned, isolation_level)


def take_again(
    logs: Logs, topics: Sequence[str], token: SnapshotToken, isolation_level: IsolationLevel
) -> Snapshot:
    """The snapshot that a token stands for; see :func:`txnlog.read.time_travel.pin_again`."""
    from txnlog.read.time_travel import pin_again

    return Snapshot(logs.storage, pin_again(logs, topics, token, isolation_level), isolation_level)


def take_changes(
    logs: Logs,
    topic: str,
    since: object,
    until: object = None,
    columns: Sequence[str] | None = None,
    row_filter: pyarrow.compute.Expression | None = None,
) -> Scan:
    """Plan a scan of what was added between two snapshots; see :meth:`txnlog.Store.changes`."""
    from txnlog.read.time_travel import added_since

    newer, older = both_ends(logs, topic, since, until)
    starts = added_since(newer.view(topic), older)
    found = newer.scan(topic, starts, columns=columns, filter=row_filter)
    found.until = _token_of(newer)
    return found


def take_feed(
    logs: Logs,
    topic: str,
    since: object,
    until: object = None,
    columns: Sequence[str] | None = None,
    row_filter: pyarrow.compute.Expression | None = None,
    *,
    as_json: bool = False,
) -> ChangeFeed:
    """Plan a feed of the changes between two snapshots; see :meth:`txnlog.Store.changes`.

    With ``as_json`` of a topic with a schema as if it had none: see :meth:`Snapshot.scan`.
    """
    from txnlog.read.changed_ranges import ranges_since
    from txnlog.read.changed_rows import ChangeFeed, change_columns
    from txnlog.read.row_filter import parse_filter

    newer, older = both_ends(logs, topic, since, until)
    view = newer.view(topic)
    chosen = change_columns(topic, columns, view.schema, as_json=as_json)
    kept = None
    if row_filter is not None:
        kept = parse_filter(row_filter, chosen.available, chosen.field)
    return ChangeFeed(
        logs.storage, topic, ranges_since(view, older), chosen, _token_of(newer), kept
    )


def _token_of(snapshot: Snapshot) -> str | None:
    return snapshot.token() if snapshot.isolation_level == "read_committed" else None


def both_ends(
    logs: Logs, topic: str, since: object, until: object
) -> tuple[Snapshot, SnapshotToken]:
    """The later snapshot of two, of this topic, and what the earlier one had.

    See :meth:`txnlog.Store.changes`.
    """
    from txnlog.read.snapshot_token import SnapshotToken
    from txnlog.read.time_travel import end_no_earlier, end_with, parse_at

    older = since if isinstance(since, Snapshot) or since == "earliest" else parse_at(since)
    newer = until if isinstance(until, Snapshot) else take_snapshot(logs, [topic], at=until)
    if isinstance(older, str):
        older = SnapshotToken.before_all([newer.view(topic)])
    elif isinstance(older, int):
        view = take_snapshot(logs, [topic], at=older).view(topic)
        older = SnapshotToken.of([end_with(logs.topic(topic), view, newer.view(topic))], "atomic")
    elif isinstance(older, Snapshot):
        older = SnapshotToken.decode(older.token())
    views = {topic: end_no_earlier(newer.view(topic), older)}
    pinned = PinnedTopics(views, newer.consistency)
    return Snapshot(logs.storage, pinned, newer.isolation_level), older
