"""A store: a folder on some filesystem with topics, consumer groups and transactions in it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Literal, overload

from txnlog import display, names
from txnlog.admin.upkeep import Upkeep
from txnlog.arguments import names_wrong_arguments, naming_wrong_arguments
from txnlog.clock import Clock, SystemClock
from txnlog.config import (
    DEFAULT_TRANSACTION_TIMEOUT_MS,
    Acks,
    AcksValue,
    AutoOffsetReset,
    CompressionType,
    OnCorrupt,
    StoreConfig,
    WriterCodec,
    check_store_config,
    check_whole_number,
)
from txnlog.consumer import Consumer
from txnlog.consumer_config import ConsumerConfig, names_config
from txnlog.errors import (
    InvalidOption,
    NotAStore,
    ObjectNotFound,
    OffsetOutOfRange,
    StoreExists,
    StoreNotFound,
)
from txnlog.log.open_logs import Logs
from txnlog.producer import Producer
from txnlog.read.isolation_levels import (
    ConsumerIsolationLevel,
    IsolationLevel,
    check_isolation_level,
)
from txnlog.read.poll_wait import AutoCommit
from txnlog.read.topic_view import Offsets
from txnlog.scan import Scan
from txnlog.serializers import Serializer, Serializers
from txnlog.snapshot import Snapshot, take_changes, take_feed, take_snapshot
from txnlog.storage import check_location, envelope, open_storage
from txnlog.storage.base import Storage
from txnlog.storage.create_once import Retries, create_once
from txnlog.storage.forwarding import SalvagedStorage, logged
from txnlog.storage.probe import probe
from txnlog.storage.reach import own_options
from txnlog.storage.registry import StoreFile, check_whole, find_other, in_time
from txnlog.write.partitioner import DEFAULT_PARTITIONER, PartitionFunction, check_partitioner
from txnlog.write.segment_uploads import DEFAULT_MEMORY_BYTES
from txnlog.write.topic_buffer import WriterSettings

if TYPE_CHECKING:
    import pyarrow.compute

    from txnlog.admin.found import Found
    from txnlog.admin.groups import GroupAdmin
    from txnlog.admin.kafka import KafkaAdmin
    from txnlog.admin.maintenance import MaintenanceStep
    from txnlog.admin.maintenance_admin import MaintenanceAdmin
    from txnlog.admin.tables import TableAdmin
    from txnlog.admin.topics import TopicAdmin
    from txnlog.admin.transactions import TransactionAdmin
    from txnlog.doctor.findings import Finding
    from txnlog.metric import Metric
    from txnlog.read.changed_rows import ChangeFeed
    from txnlog.schemas import SchemaAdmin


@naming_wrong_arguments
def open_store(
    url: str | os.PathLike[str],
    *,
    create: bool = False,
    storage_options: Mapping[str, object] | None = None,
    config: Mapping[str, object] | None = None,
    unsafe_single_writer: bool = False,
    salvage: bool = False,
    clock: Clock | None = None,
) -> Store:
    """Open a store; with ``create``, make it if it is missing.

    One on several roots is made by :func:`txnlog.replication.open_replicas`, and opened here, by
    the URL of any root or of its controller.

    Args:
        url: a path, or a URL such as ``s3://bucket/folder`` or ``memory://name``.
        create: make the folder a store if it is empty or missing; an existing store is opened.
        storage_options: for the filesystem (keys, endpoint, ...), as fsspec takes them.
        config: settings of a new store; see docs/SETTINGS.md.
        unsafe_single_writer: allow a filesystem without put-if-absent. Only one process may
            ever write to such a store at a time; nothing checks that.
        salvage: only to look at what is left, of one root alone too: nothing is written.
        clock: for tests.

    Raises:
        StoreNotFound: there is no store and ``create`` is False.
        NotAStore: the folder holds something else.
        UnsupportedVersion: a newer txnlog made the store.
        UnsupportedFilesystem, PutIfAbsentBroken: the filesystem cannot carry a store.
    """
    clock = clock or SystemClock()
    check_location(url, storage_options)

    def begin() -> Storage:
        storage = open_storage(
            url, own_options(url, storage_options), unsafe_single_writer=unsafe_single_writer
        )
        if salvage:
            return SalvagedStorage(storage)
        check_whole(storage)
        return storage

    try:
        storage = in_time(url, begin)
        return attach(logged(storage), create=create, config=config, clock=clock)
    except (StoreNotFound, NotAStore, InvalidOption):
        found = find_other(url, storage_options, clock, unsafe_single_writer=unsafe_single_writer)
        if found is None:
            raise
        return attach(logged(found), create=create, config=config, clock=clock)


def attach(
    storage: Storage,
    *,
    create: bool = False,
    config: Mapping[str, object] | None = None,
    clock: Clock | None = None,
) -> Store:
    """Open a store over a storage that is already open, or one of your own."""
    clock = clock or SystemClock()
    checked = check_store_config(config)
    if create:
        storage.will_write()
    try:
        found = _read_store_file(storage)
    except ObjectNotFound:
        if storage.list_names("") or any(not n.startswith(".") for n in storage.list_folders("")):
            raise NotAStore(
                f"{storage.url} holds files but no {names.STORE_FILE}: it is not a txnlog store; "
                "choose an empty folder"
            ) from None
        if not create:
            raise StoreNotFound(
                f"there is no store at {storage.url}; create one: txnlog.open(..., create=True), "
                "or `txnlog store create` in a shell"
            ) from None
        if not storage.was_probed():
            probe(storage)
        found = StoreFile(clock.token(), clock.now_ms(), checked)
        data = envelope.encode(found)
        if not create_once(storage, names.STORE_FILE, data, clock):
            found = _read_store_file(storage)
    if checked and checked != found.config:
        raise StoreExists(
            f"{storage.url} exists with the settings {found.config or 'default'}, not {checked}; "
            "a store's settings are fixed when it is created"
        )
    return Store(storage, found, clock)


def logs_of(store: object, what: str) -> Logs:
    """The logs of the open store that ``what`` was given. Raises InvalidOption: it is none."""
    if isinstance(store, Store):
        return store.logs
    raise InvalidOption(
        f"{what} takes an open store, not {store!r:.100}: txnlog.open(url) opens one, and "
        "txnlog.replication.open_replicas(url) the roots of one that does not answer"
    )


def _read_store_file(storage: Storage) -> StoreFile:
    data = storage.get(names.STORE_FILE)
    storage.check_listing(names.STORE_FILE)
    return StoreFile.decode(data, f"{storage.url}/{names.STORE_FILE}")


@names_wrong_arguments()
class Store:
    """Topics, groups and transactions under one root. Made by :func:`txnlog.open`.

    A store holds no connection that must be closed. It, its snapshots, scans and producers may be
    used from several threads at once; a consumer is for one thread at a time.
    """

    def __init__(self, storage: Storage, store_file: StoreFile, clock: Clock) -> None:
        self._storage = storage
        self._file = store_file
        self._clock = clock
        self._logs = Logs(storage, StoreConfig.of(store_file.config), clock)
        self._logs.upkeep = Upkeep()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def _repr_html_(self) -> str:
        created = display.show_time(self.created_at_ms)
        facts = [("url", self.url), ("id", self.store_id), ("created", created)]
        return display.table("Store", ("", ""), [*facts, *self.config.items()])

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[object, ...]]:
        # Travels as an address; what it has read is read again where it arrives.
        return Store, (self._storage, self._file, self._clock)

    @property
    def url(self) -> str:
        """Where the store is, without credentials."""
        return self._storage.url

    @property
    def store_id(self) -> str:
        """The store's own random id."""
        return self._file.store_id

    @property
    def created_at_ms(self) -> int:
        """When the store was created, in milliseconds since the epoch."""
        return self._file.created_at_ms

    @property
    def config(self) -> dict[str, str]:
        """The settings that differ from the defaults. They were fixed at creation."""
        return dict(self._file.config)

    @property
    def storage(self) -> Storage:
        """The storage that the store lies on."""
        return self._storage

    @property
    def logs(self) -> Logs:
        """The open logs: for the parts of txnlog that build on a store, not for applications."""
        return self._logs

    @cached_property
    def topics(self) -> TopicAdmin:
        """Topics: create, describe, change and delete them."""
        from txnlog.admin.topics import TopicAdmin

        return TopicAdmin(self._logs)

    @cached_property
    def groups(self) -> GroupAdmin:
        """Consumer groups: describe them, move and delete their offsets."""
        from txnlog.admin.groups import GroupAdmin

        return GroupAdmin(self._logs)

    @cached_property
    def transactions(self) -> TransactionAdmin:
        """Transactions and their producers: describe and end them."""
        from txnlog.admin.transactions import TransactionAdmin

        return TransactionAdmin(self._logs)

    @cached_property
    def maintenance(self) -> MaintenanceAdmin:
        """Single steps of :meth:`maintain`."""
        from txnlog.admin.maintenance_admin import MaintenanceAdmin

        return MaintenanceAdmin(self._logs)

    @cached_property
    def tables(self) -> TableAdmin:
        """Topics as Delta and Iceberg tables."""
        from txnlog.admin.tables import TableAdmin

        return TableAdmin(self._logs)

    @cached_property
    def schemas(self) -> SchemaAdmin:
        """Schemas of values, in the topic ``_schemas``: register, find and compare them."""
        from txnlog.schemas import SchemaAdmin

        return SchemaAdmin(self._logs)

    @cached_property
    def kafka(self) -> KafkaAdmin:
        """Topics from a Kafka broker's files, and to them."""
        from txnlog.admin.kafka import KafkaAdmin

        return KafkaAdmin(self._logs)

    def snapshot(
        self,
        topics: str | Sequence[str],
        *,
        isolation_level: IsolationLevel = "read_committed",
        at: datetime | int | str | None = None,
    ) -> Snapshot:
        """Pin several topics at one consistent cut: each transaction shows wholly or not at all.

        At 'read_committed' unless ``is_atomic`` of the snapshot is False: while transactions
        overlap without a break, or if compaction and a purge have passed the cut, each partition
        may have to end at its own last stable offset. How much more it is, usually the state at one
        instant, ``consistency`` says (docs/ISOLATION.md).

        Args:
            topics: their names.
            isolation_level: 'read_committed', 'snapshot' or 'read_uncommitted'; see :meth:`scan`.
            at: show the topics as they were: at a time (a datetime with a zone, as text too, or
                milliseconds since 1970), or as a token of :meth:`Snapshot.token` says. A
                transaction has the time of its last append, by its writer's clock, and shows
                wholly or not at all. Only at 'read_committed'. See docs/TIME_TRAVEL.md.

        Raises:
            UnknownTopicOrPartition: a topic does not exist, did not exist then, or was recreated.
            OffsetOutOfRange: the records that a partition had then were deleted.
            InvalidOption: the isolation level is unknown, or ``at`` is not valid.
            UnsupportedVersion: a newer txnlog made the token.
        """
        chosen = [topics] if isinstance(topics, str) else topics
        return take_snapshot(self._logs, chosen, check_isolation_level(isolation_level), at=at)

    @overload
    def changes(
        self,
        topic: str,
        since: Snapshot | datetime | int | str,
        until: Snapshot | datetime | int | str | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: pyarrow.compute.Expression | None = None,
        pre_images: Literal[False] = False,
    ) -> Scan: ...

    @overload
    def changes(
        self,
        topic: str,
        since: Snapshot | datetime | int | str,
        until: Snapshot | datetime | int | str | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: pyarrow.compute.Expression | None = None,
        pre_images: Literal[True],
    ) -> ChangeFeed: ...

    def changes(
        self,
        topic: str,
        since: Snapshot | datetime | int | str,
        until: Snapshot | datetime | int | str | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: pyarrow.compute.Expression | None = None,  # noqa: A002 - as pyarrow calls it
        pre_images: bool = False,
    ) -> Scan | ChangeFeed:
        """The records added to a topic between two snapshots: whole transactions only.

        With ``pre_images`` what they have done to the row of each key: inserts, updates with the
        row before and after, deletes. See docs/TIME_TRAVEL.md.

        Args:
            topic: its name.
            since: a snapshot that has the topic, its token, or a moment; see :meth:`snapshot`.
                'earliest' is the moment at which the topic was made.
            until: a snapshot, its token, or a moment; None means now.
            columns: see :meth:`scan`. With ``pre_images`` there is ``_change`` too, and no
                ``_deleted``; by default it, partition, offset and timestamp of the record that made
                the change, and the topic's own columns.
            filter: see :meth:`scan`; with ``pre_images`` of the rows of the feed.
            pre_images: a feed of changes, of a topic with a key. Records without one are left out.

        Raises:
            UnknownTopicOrPartition: it does not exist, or was recreated since.
            OffsetOutOfRange: some of the added records have been deleted since; with ``pre_images``
                also if some that ``since`` had were.
            SnapshotExpired: with ``pre_images``, keys were purged since.
            InvalidOption: ``since`` has more than ``until``, one of them is not valid, or
                ``pre_images`` and the topic's schema has no key.
        """
        take = take_feed if pre_images else take_changes
        return take(self._logs, topic, since, until, columns, filter)

    def scan(
        self,
        topic: str,
        starting_offsets: Offsets = None,
        ending_offsets: Offsets = None,
        columns: Sequence[str] | None = None,
        *,
        filter: pyarrow.compute.Expression | None = None,  # noqa: A002 - as pyarrow calls it
        isolation_level: IsolationLevel = "read_committed",
        latest: bool = False,
    ) -> Scan:
        """Pin a range of one topic for reading as Arrow.

        Args:
            topic: its name.
            starting_offsets: 'earliest' (also None), 'latest', or offsets by partition.
            ending_offsets: 'latest' (also None), 'earliest', or offsets by partition, exclusive.
            columns: some of key, value, topic, partition, offset, timestamp, timestampType and
                headers; others are not even decompressed. For a topic with a schema: its columns,
                and _topic, _partition, _offset, _timestamp, _headers, _deleted.
            filter: a pyarrow expression over any of these columns; records for which it is true are
                returned. Segments, and row groups, that cannot hold such records are not read.
            isolation_level: 'read_committed' (up to the first undecided record of each
                partition), 'snapshot' (every committed transaction, also behind undecided ones)
                or 'read_uncommitted' (everything that was written).
            latest: the newest record of each key alone; see :meth:`txnlog.Snapshot.scan`.

        Raises:
            UnknownTopicOrPartition: there is no such topic or partition.
            OffsetOutOfRange: an offset lies below the log's start or beyond its end.
            InvalidOption: an argument is not valid, or ``latest`` and the topic has no key.
        """
        starts: dict[int, int] | None = None
        while True:
            snapshot = self.snapshot([topic], isolation_level=isolation_level)
            before, starts = starts, snapshot.beginning_offsets(topic)
            try:
                return snapshot.scan(
                    topic, starting_offsets, ending_offsets, columns, filter=filter, latest=latest
                )
            except OffsetOutOfRange:
                if starts == before:
                    raise  # nothing was deleted meanwhile, between pinning and planning

    def producer(
        self,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
        buffer_memory_bytes: int | None = None,
        compression_type: CompressionType | None = None,
        compression_level: int | None = None,
        partitioner: str | PartitionFunction = DEFAULT_PARTITIONER,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        linger_ms: int | None = None,
        acks: AcksValue = "all",
        delivery_timeout_ms: int = 120_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1000,
    ) -> Producer:
        """Make a producer. It is idempotent, and transactional if it has a transactional id.

        Args:
            transactional_id: names the producer across restarts; None: no transactions.
            transaction_timeout_ms: a transaction that is open for longer is aborted.
            buffer_memory_bytes: about how much it buffers before it uploads.
            compression_type: for topics whose ``compression.type`` is ``producer``, the default.
            compression_level: the level of that codec, instead of its default.
            partitioner: by a hash of the key: 'murmur2', 'crc32', 'sticky'; whatever the keys are:
                'round_robin', 'random'; or a function from a record batch and the number of
                partitions, or its name as ``package.module:function``. See docs/CLIENTS.md.
            key_serializer: makes of the keys that are sent what ``send`` takes, ``str.encode`` say.
            value_serializer: of the values. Neither is called for None, nor for batches.
            linger_ms: flush by itself so long after a send; None: only when told to.
            acks: what a flush waits for. 'all': written, and safe from a power cut. 1: written. 0:
                nothing; failures are only logged. With a transactional id it must be 'all'.
            delivery_timeout_ms: how long requests to a failing storage are retried.
            retry_backoff_ms: the pause before the first retry; it doubles with each.
            retry_backoff_max_ms: the longest pause.

        Raises:
            InvalidTransactionalId, InvalidTransactionTimeout, InvalidConfig, InvalidOption: an
                argument is not valid.
        """
        if buffer_memory_bytes is not None:
            check_whole_number(buffer_memory_bytes, "buffer_memory_bytes", InvalidOption, least=1)
        return Producer(
            self._logs,
            WriterSettings(
                codec=WriterCodec.parse(compression_type, compression_level),
                memory_bytes=buffer_memory_bytes or DEFAULT_MEMORY_BYTES,
                acks=Acks.parse(acks, transactional=transactional_id is not None),
                retries=Retries.of(delivery_timeout_ms, retry_backoff_ms, retry_backoff_max_ms),
                partitioner=check_partitioner(partitioner),
                linger_ms=linger_ms,
            ),
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            serializers=Serializers.of(key_serializer, value_serializer, "serializer"),
        )

    @names_config
    def consumer(
        self,
        *topics: str,
        pattern: str | re.Pattern[str] | None = None,
        group_id: str | None = None,
        isolation_level: ConsumerIsolationLevel = "read_committed",
        auto_offset_reset: AutoOffsetReset = "latest",
        enable_auto_commit: bool = False,
        max_poll_records: int = 500,
        stop_at_end: bool = False,
        on_corrupt: OnCorrupt = "raise",
        as_json: bool = False,
        key_deserializer: Serializer | None = None,
        value_deserializer: Serializer | None = None,
        config: ConsumerConfig | None = None,
    ) -> Consumer:
        """Make a consumer of ``topics``, or of all topics that match ``pattern``.

        Consumers of one group share the partitions of the topics that they subscribe to. Each
        joins at its first poll, and leaves when it is closed. A consumer without a group, or one
        that was given partitions by ``assign``, shares nothing. See docs/GROUPS.md.

        Args:
            topics: names of topics; with none, call ``subscribe`` or ``assign``.
            pattern: instead of names, a regular expression; it must match a topic's whole name.
            group_id: the group whose committed offsets it starts from, and for which it commits;
                None: its positions are not stored.
            isolation_level: 'read_committed' or 'read_uncommitted'.
            auto_offset_reset: where to start without a committed offset, or with one that is out
                of range: 'earliest', 'latest', or 'none' (an error).
            enable_auto_commit: commit what polls have returned, at a later poll and by ``close``.
            max_poll_records: how many records a poll returns at most.
            stop_at_end: iterating ends when all that was visible is read.
            on_corrupt: 'raise' CorruptRecord at damage, after what is sound, or 'skip' it and log.
            as_json: values of typed topics are JSON (see docs/TYPED.md), not dicts of columns.
            key_deserializer: makes of a record's key what its ``key`` is, ``bytes.decode`` say.
            value_deserializer: of the value, ``json.loads`` say. Neither is called for None, nor
                for batches; where one raises, a poll raises RecordDeserializationFailed.
            config: how it fetches, and how it is a member: what is seldom changed.

        Raises:
            UnknownTopicOrPartition, InvalidGroupId, InvalidOption: a topic does not exist, or an
                argument is not valid.
        """
        chosen = ConsumerConfig() if config is None else config
        if not isinstance(chosen, ConsumerConfig):
            raise InvalidOption(f"config must be a ConsumerConfig, not {config!r:.200}")
        retention_ms = self._logs.config.offsets_retention_ms
        auto_commit = AutoCommit(self._clock, chosen.auto_commit_interval_ms, retention_ms)
        consumer = Consumer(
            self._logs,
            group_id=group_id,
            isolation_level=isolation_level,
            auto_offset_reset=auto_offset_reset,
            max_poll_records=max_poll_records,
            fetch=chosen.fetching(on_corrupt, as_json=as_json),
            stop_at_end=stop_at_end,
            auto_commit=auto_commit if enable_auto_commit else None,
            metadata_max_age_ms=chosen.metadata_max_age_ms,
            membership=chosen.membership(),
            deserializers=Serializers.of(key_deserializer, value_deserializer, "deserializer"),
        )
        if topics or pattern is not None:
            consumer.subscribe(topics, pattern)
        return consumer

    def maintain(
        self,
        topics: str | Sequence[str] | None = None,
        *,
        dry_run: bool = False,
        orphan_age_ms: int | None = None,
        publish: str | Sequence[str] = (),
    ) -> list[MaintenanceStep]:
        """Do the work that a store needs from time to time: nothing runs in the background.

        Retention: the oldest segments of topics are deleted, as their ``retention.ms`` and
        ``retention.bytes`` say. Compaction: in topics whose ``cleanup.policy`` says so, only the
        newest record of each key stays, in partitions with enough new records since the last time.
        Merging: many small segments become few large ones. Publishing: topics with
        ``table.publish`` become tables, or these are brought up to date. Vacuum deletes files that
        nobody needs any more: those of deleted records and of segments that were merged or
        compacted (``file.delete.delay.ms`` later), those of deleted topics, and leftovers of killed
        jobs. Transactions that their producers do not end are ended. Transactional ids and groups
        that were idle for too long expire. Roots of a replicated store that answer again rejoin, if
        ``replica.auto.return`` is set, and data is then moved to where it belongs. Files' ages are
        by the storage's own clock; if it has none, only files of deleted topics are deleted. May
        run in several processes at once, and stop anywhere.

        Args:
            topics: the name of a topic, or several; then nothing else is touched. None for
                everything.
            dry_run: only say what would be done now.
            orphan_age_ms: uploaded files that nothing refers to are deleted at this age; at least
                a day, and 7 days if left out. A job that has not committed them by then is refused
                (``UploadExpired``).
            publish: where this process may publish topics that have ``table.publish``: how the
                setting begins, such as "delta:s3://lake/tables" or "iceberg:prod"; several in a
                list. Credentials are those of the process. Without any nothing is published.

        Returns:
            What was done, in order. A part that failed is a ``MaintenanceFailure`` among the
            results; the others go on. ``FutureRecords`` are only named: retention passes them by.

        Raises:
            InvalidOption, InvalidTopic: an argument is not valid.
            StorageError: the storage fails; nothing was done.
        """
        from txnlog.admin.maintenance import Maintenance

        chosen = [topics] if isinstance(topics, str) else topics
        maintenance = Maintenance(
            self._logs, chosen, orphan_age_ms, dry_run=dry_run, publish=publish
        )
        return [*maintenance.steps()]

    def metrics(self) -> Found[Metric]:
        """The store as numbers: offsets, sizes, lags, open transactions.

        They are not all of the same moment. Costs one listing for each topic, group and
        transactional id. What cannot be read is counted among the metrics, too.
        """
        from txnlog.admin.metrics import measure

        return measure(self._logs)

    def examine(
        self,
        topics: str | Sequence[str] | None = None,
        *,
        with_probe: bool = True,
        with_contents: bool = False,
        orphan_age_ms: int | None = None,
    ) -> Iterator[Finding]:
        """Check the rules of docs/PROTOCOL.md over what lies in the store, one after the other.

        Ends no transaction and changes nothing, but the probe writes a few dozen small objects
        and deletes them. Safe while others write.

        Args:
            topics: the name of one or several: only these, with the transactional ids; None for
                everything.
            with_probe: also check what the storage promises.
            with_contents: also read every segment and every index.
            orphan_age_ms: files that nothing refers to are orphans at this age; younger ones may
                belong to a running upload. ``log.cleanup.age.ms``, or a day, if left out.

        Raises:
            UnknownTopicOrPartition: one of the topics never existed.
            StorageError: the filesystem failed.
        """
        from txnlog.doctor.examination import Examination

        age_ms = self._logs.config.left_over_age_ms if orphan_age_ms is None else orphan_age_ms
        chosen = [topics] if isinstance(topics, str) else topics
        return Examination(self._logs, chosen, with_probe, with_contents, age_ms).findings()
