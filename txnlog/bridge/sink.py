"""From a store into Kafka: the records and the position here are committed together, there.

The positions are records of a compacted topic of the cluster, in the transaction of the records.
Kafka fences an older process of the same name, so the last positions are known when one begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import msgspec
import pyarrow as pa

from txnlog.bridge import client
from txnlog.bridge.client import Cluster, reported
from txnlog.bridge.progress import BridgeCommit
from txnlog.consumer import Consumer
from txnlog.errors import BridgeFailed, InvalidOption, OffsetOutOfRange, StorageError
from txnlog.limits import Name, Offset, PartitionNumber
from txnlog.names import TopicPartition, check_topic, check_transactional_id
from txnlog.read.json_records import as_keys_and_values
from txnlog.store import Store

POSITIONS: Final = "_txnlog_positions"
"""The topic of a cluster with the positions of all bridges into it."""
_WAIT_MS: Final = 1000
_POLL_EVERY: Final = 1000
_ATTEMPTS: Final = 5

_logger = logging.getLogger(__name__)


class _Key(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    bridge: Name
    store: Name
    topic: Name
    topic_id: Name
    partition: PartitionNumber


_KEY = msgspec.json.Decoder(_Key)
_POSITION = msgspec.json.Decoder(Offset)


class KafkaSink:
    """Copies topics of a store into topics of the same names of a Kafka cluster.

    Keys, values, headers, times and partitions stay as they are. Rows of typed topics go out with
    their keys and values in JSON. Topics that are not there are created with as many partitions;
    of those that are, partitions that are missing are added.

    Args:
        store: where from.
        servers, topics, name, options, commit_interval_ms: as for :class:`KafkaSource`.
        skip_lost: go on behind records that were deleted here before they were copied.

    Raises:
        InvalidOption: a name, the servers or an option is not valid; the client is not installed.
    """

    def __init__(
        self,
        store: Store,
        servers: str,
        topics: Sequence[str],
        *,
        name: str = "bridge",
        options: Mapping[str, str] | None = None,
        commit_interval_ms: int = 10_000,
        skip_lost: bool = False,
    ) -> None:
        self.cluster = Cluster(servers, options)
        if not topics or isinstance(topics, str):
            raise InvalidOption("a bridge needs a list of topics, one at least")
        if POSITIONS in topics:
            raise InvalidOption(f"topic {POSITIONS!r} is that of bridges' own positions")
        self.store = store
        self.topics = [check_topic(topic) for topic in topics]
        self.transactional_id = check_transactional_id(f"txnlog-bridge-{name}-{store.store_id}")
        self.name = name
        self.interval_s = commit_interval_ms / 1000
        self.skip_lost = skip_lost
        self._clock = store.logs.clock

    def run(
        self,
        *,
        until_end: bool = False,
        report: Callable[[BridgeCommit], object] = lambda _: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Copy; see :meth:`KafkaSource.run`.

        Raises:
            BridgeFailed: Kafka refuses something, records were deleted here that were not copied,
                or a newer instance has taken over.
            TxnlogError: the store failed.
        """
        attempts = _ATTEMPTS

        def told(commit: BridgeCommit) -> None:
            nonlocal attempts
            attempts = _ATTEMPTS
            report(commit)

        while True:
            try:
                with _Copying(self) as copying:
                    copying.run(until_end, told, is_stopped)
                return
            except (BridgeFailed, StorageError) as error:
                attempts -= 1
                if not error.retriable or not attempts or is_stopped():
                    raise
                _logger.warning("bridge %s begins again: %s", self.name, error)
                self._clock.sleep(2.0 ** (_ATTEMPTS - attempts) * self._clock.jitter())


class _Copying:
    """One attempt: it begins with the positions, and ends at the first failure."""

    def __init__(self, sink: KafkaSink) -> None:
        self._kafka = client.load()
        self._sink = sink
        self._store = sink.store
        self._clock = sink.store.logs.clock
        self._ids: dict[str, str] = {}
        self._schemas: dict[str, Any] = {}
        self._moved: dict[TopicPartition, int] = {}
        self._count = 0
        self._is_open = False
        self._producer = sink.cluster.producer(sink.transactional_id)
        self._reader: Consumer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._is_open:
            try:
                self._producer.abort_transaction(client.WAIT_S)
            except self._kafka.KafkaException as error:
                _logger.warning("Kafka ends the transaction by its timeout: %s", error)

    def run(
        self,
        until_end: bool,
        report: Callable[[BridgeCommit], object],
        is_stopped: Callable[[], bool],
    ) -> None:
        with reported("Kafka's transactions"):
            self._producer.init_transactions(client.WAIT_S)
        partitions = self._make_topics()
        positions = self._read_positions()
        self._reader = reader = self._store.consumer(auto_offset_reset="none")
        reader.assign(partitions)
        beginnings = reader.beginning_offsets(partitions)
        ends = reader.end_offsets(partitions)
        for where in partitions:
            begin = self._begin(where, positions.get(where), beginnings[where])
            reader.seek(where, begin)
        begun_s = self._clock.monotonic_s()
        while True:
            batches = reader.poll_batches(timeout_ms=_WAIT_MS)
            if batches and not self._is_open:
                begun_s = self._clock.monotonic_s()
                self._begin_transaction()
            for where, found in batches.items():
                for batch in found:
                    self._send(where, batch)
                self._moved[where] = reader.position(where)
            at_end = all(reader.position(where) >= ends[where] for where in partitions)
            is_over = is_stopped() or (until_end and at_end)
            if is_over or self._clock.monotonic_s() - begun_s >= self._sink.interval_s:
                self._commit(report, reader, partitions)
            if is_over:
                return

    def _begin(self, where: TopicPartition, position: int | None, log_start: int) -> int:
        if position is None or position >= log_start:
            return log_start if position is None else position
        if not self._sink.skip_lost:
            raise OffsetOutOfRange(
                f"{where.topic}:{where.partition}: the records from offset {position} to "
                f"{log_start} were deleted before they were copied; to go on behind them, skip "
                "what is lost (skip_lost=True, --skip-lost)"
            )
        return log_start

    # -- topics ----------------------------------------------------------------------------------

    def _make_topics(self) -> list[TopicPartition]:
        """The partitions of the topics, which are made in Kafka too."""
        admin = self._sink.cluster.admin()
        partitions: list[TopicPartition] = []
        with reported("the topics of Kafka"):
            there = admin.list_topics(timeout=client.WAIT_S).topics
        for topic in self._sink.topics:
            described = self._store.topics.describe(topic)
            self._ids[topic] = described.topic_id
            self._schemas[topic] = described.schema
            count = len(described.partitions)
            known = len(there[topic].partitions) if topic in there else 0
            self._make_topic(admin, topic, count, known, {})
            partitions += [TopicPartition(topic, number) for number in range(count)]
        known = len(there[POSITIONS].partitions) if POSITIONS in there else 0
        self._make_topic(admin, POSITIONS, 1, known, {"cleanup.policy": "compact"})
        return partitions

    def _make_topic(
        self,
        admin: Any,  # noqa: ANN401 - confluent_kafka.admin.AdminClient
        topic: str,
        count: int,
        known: int,
        config: Mapping[str, str],
    ) -> None:
        from confluent_kafka.cimpl import NewPartitions, NewTopic

        with reported(f"topic {topic!r} of Kafka"):
            if known == 0:
                made = admin.create_topics([NewTopic(topic, count, config={**config})])
            elif known < count:
                made = admin.create_partitions([NewPartitions(topic, count)])
            else:
                return
            try:
                made[topic].result(client.WAIT_S)
            except self._kafka.KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise

    # -- positions -------------------------------------------------------------------------------

    def _read_positions(self) -> dict[TopicPartition, int]:
        """The next offsets to be copied. No older instance can add to them any more."""
        kafka, found = self._kafka, dict[TopicPartition, int]()
        consumer = self._sink.cluster.consumer(self._sink.name)
        try:
            with reported("reading the positions from Kafka"):
                consumer.assign([kafka.TopicPartition(POSITIONS, 0, kafka.OFFSET_BEGINNING)])
            until_s = self._clock.monotonic_s() + client.WAIT_S
            while self._clock.monotonic_s() < until_s:
                with reported("reading the positions from Kafka"):
                    messages = consumer.consume(1000, 1.0)
                for message in messages:
                    error = message.error()
                    if error is None:
                        self._take_position(message.key(), message.value(), found)
                        until_s = self._clock.monotonic_s() + client.WAIT_S
                    elif error.name() == client.END:
                        return found
                    else:
                        raise client.failure("reading the positions from Kafka", error)
        finally:
            consumer.close()
        stuck = BridgeFailed(f"topic {POSITIONS!r} of Kafka was not read in {client.WAIT_S:.0f} s")
        stuck.retriable = True
        raise stuck

    def _take_position(
        self, key: bytes | None, value: bytes | None, found: dict[TopicPartition, int]
    ) -> None:
        try:
            at = _KEY.decode(key or b"")
            position = None if value is None else _POSITION.decode(value)
        except msgspec.DecodeError as error:
            raise BridgeFailed(
                f"topic {POSITIONS!r} of Kafka has a record that no bridge has written ({error}): "
                "it says how far bridges have read, so nothing was copied; delete the record's key"
            ) from error
        mine = (self._sink.name, self._store.store_id, self._ids.get(at.topic))
        where = TopicPartition(at.topic, at.partition)
        if (at.bridge, at.store, at.topic_id) == mine:
            if position is None:
                found.pop(where, None)
            else:
                found[where] = position

    # -- records ---------------------------------------------------------------------------------

    def _begin_transaction(self) -> None:
        with reported("Kafka's transactions"):
            self._producer.begin_transaction()
        self._is_open = True

    def _send(self, where: TopicPartition, batch: pa.RecordBatch) -> None:
        """Produce a batch's records."""
        if (schema := self._schemas[where.topic]) is not None:
            batch = as_keys_and_values(batch, schema)
        times = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False)
        columns = (
            batch.column("key").to_pylist(),
            batch.column("value").to_pylist(),
            times.cast(pa.int64()).to_pylist(),
            batch.column("headers").to_pylist(),
        )
        produce = self._producer.produce
        with reported(f"writing {where.topic}:{where.partition} to Kafka"):
            for number, (key, value, time, headers) in enumerate(zip(*columns, strict=True)):
                pairs = [(header["key"], header["value"]) for header in headers or ()]
                while True:
                    try:
                        produce(
                            where.topic, value, key, where.partition, timestamp=time, headers=pairs
                        )
                        break
                    except BufferError:  # what waits to be sent is as much as the client keeps
                        self._producer.poll(0.1)
                if number % _POLL_EVERY == 0:
                    self._producer.poll(0)
        self._count += batch.num_rows

    def _commit(
        self,
        report: Callable[[BridgeCommit], object],
        reader: Consumer,
        partitions: Sequence[TopicPartition],
    ) -> None:
        if not self._is_open:
            return
        store_id = self._store.store_id
        for where, position in self._moved.items():
            key = _Key(
                self._sink.name, store_id, where.topic, self._ids[where.topic], where.partition
            )
            value = msgspec.json.encode(position)
            with reported("writing the positions to Kafka"):
                self._producer.produce(POSITIONS, value, msgspec.json.encode(key), 0)
        with reported("committing to Kafka"):
            self._producer.commit_transaction(client.WAIT_S)
        moved, self._moved = self._moved, {}
        count, self._count, self._is_open = self._count, 0, False
        ends = reader.end_offsets(partitions)
        lag = sum(max(ends[where] - reader.position(where), 0) for where in partitions)
        report(BridgeCommit(self._clock.now_ms(), count, moved, lag))
