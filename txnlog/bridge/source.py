"""From Kafka into a store: the records and the position in Kafka are committed together."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Final, Self

import pyarrow as pa

from txnlog.bridge import client
from txnlog.bridge.base import COPIED_CONFIG, LOOK_S, Bridge, CopyProgress
from txnlog.bridge.client import failure, passing, reported
from txnlog.bridge.positions import Positions
from txnlog.config import LARGEST_RECORD_BYTES, TopicConfig
from txnlog.errors import (
    BridgeFailed,
    InvalidRecord,
    RecordTooLarge,
    TopicAlreadyExists,
    TxnlogError,
    UnknownTopicOrPartition,
)
from txnlog.names import TopicPartition
from txnlog.producer import Producer
from txnlog.segments.records import HEADERS_TYPE

POSITIONS: Final = "_kafka_positions"
"""The topic with the positions of all bridges into a store."""
_MOST_AT_ONCE: Final = 10_000
_MOST_BYTES: Final = 64 << 20
"""About how much is taken from the client in one call."""
_CONFIG_WAIT_S: Final = 10.0
_AT_ANY_TIME: Final = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
"""Times stay as they are: brokers have judged them, or have no limit."""

_logger = logging.getLogger(__name__)


class KafkaSource(Bridge):
    """Copies topics of a Kafka cluster into topics of the same names; see :class:`Bridge`.

    Keys, values, headers, times and partitions stay as they are; offsets do not, since Kafka's have
    gaps. Topics that are not there are created, with Kafka's partitions, with the retention that
    was set there (not with a broker's defaults), and for records of any time; partitions that were
    added there are added here. With ``until_end`` partitions are read up to the ends that they have
    when they are reached.
    """

    _positions = POSITIONS

    def _check_store(self) -> None:
        """Check nothing: topics that the store lacks are created."""

    def _attempt(self, progress: CopyProgress) -> bool:
        try:
            with _Copying(self, progress) as copying:
                return copying.run()
        except UnknownTopicOrPartition as error:  # deleted meanwhile: the next attempt makes it
            if not self.store.topics.list([POSITIONS]):
                raise  # without them everything would be copied again
            raise passing(str(error)) from error


class _Copying:
    """One attempt."""

    def __init__(self, source: KafkaSource, progress: CopyProgress) -> None:
        self._kafka = client.load()
        self._source = source
        self._progress = progress
        self._cluster_id = ""
        self._partitions: list[TopicPartition] = []
        self._next: dict[TopicPartition, int] = {}
        self._ended: set[TopicPartition] = set()
        self._at_once = _MOST_AT_ONCE // 10
        self._consumer = source.cluster.consumer(f"txnlog-bridge-{source.name}")
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._producer is not None:
                if self._progress.has_moved:
                    with suppress(TxnlogError):  # none is open, or others end it by its timeout
                        self._producer.abort_transaction()
                self._producer.close(flush=False)
        finally:
            self._consumer.close()

    def run(self) -> bool:
        store, source, progress = self._source.store, self._source, self._progress
        self._partitions = self._look_for_partitions()
        ids = {topic: self._make_topic(topic) for topic in source.topics}
        self._make_positions()
        self._producer = store.producer(
            transactional_id=f"kafka-bridge-{source.name}",
            transaction_timeout_ms=source.transaction_timeout_ms,
        )
        # From here on an older instance cannot commit, so the positions are the last ones.
        self._producer.init_transactions()
        positions = Positions(source.name, self._cluster_id, ids)
        self._next = self._read_positions(positions)
        self._assign()
        while True:
            with reported("reading from Kafka"):
                messages = client.take(self._consumer, self._at_once, LOOK_S)
            if progress.is_idle():
                return False
            self._take(messages)
            is_over = progress.is_over(at_end=self._ended >= {*self._partitions})
            has_grown = progress.may_have_grown() and (
                self._look_for_partitions() != self._partitions
            )
            if progress.has_moved and (is_over or has_grown or progress.is_due()):
                self._commit(positions)
            if is_over or has_grown:
                return is_over

    # -- topics ----------------------------------------------------------------------------------

    def _look_for_partitions(self) -> list[TopicPartition]:
        """The partitions of the topics in Kafka."""
        found = []
        for topic in self._source.topics:
            with reported(f"topic {topic!r} of Kafka"):
                metadata = self._consumer.list_topics(topic, timeout=client.WAIT_S)
            known = metadata.topics.get(topic)
            if known is None or known.error is not None or not known.partitions:
                why = known.error.str() if known is not None and known.error else "unknown"
                raise BridgeFailed(f"Kafka has no topic {topic!r} that can be read: {why}")
            self._cluster_id = metadata.cluster_id or ""
            found += [TopicPartition(topic, number) for number in sorted(known.partitions)]
        return found

    def _make_topic(self, topic: str) -> str:
        """Have the store's topic take the records; returns its id."""
        topics = self._source.store.topics
        partitions = sum(where.topic == topic for where in self._partitions)
        if not topics.list([topic]):
            with suppress(TopicAlreadyExists):  # another process was faster
                config = _AT_ANY_TIME | self._config_of(topic)
                topics.create(topic, partitions=partitions, config=config)
        there = topics.describe(topic)
        if there.schema is not None:
            raise BridgeFailed(
                f"topic {topic!r} of the store has columns; records of Kafka have keys and values: "
                "delete it, or copy into another store"
            )
        if len(there.partitions) < partitions:
            topics.alter(topic, partitions=partitions)
        return there.topic_id

    def _config_of(self, topic: str) -> dict[str, str]:
        """The topic's settings in Kafka that mean the same here; none if it does not tell them."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            ConfigResource,
            ConfigSource,
        )

        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        admin = self._source.cluster.admin()
        try:
            (future,) = admin.describe_configs([resource]).values()
            told = future.result(_CONFIG_WAIT_S)
        except (self._kafka.KafkaException, TimeoutError) as error:
            _logger.warning("settings of topic %s were not told by Kafka: %r", topic, error)
            return {}
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG
        known = {name: told[name] for name in COPIED_CONFIG if name in told and told[name].value}
        # What a broker says of all topics is no default to the client.
        config = {name: it.value for name, it in known.items() if it.source in (own, own.value)}
        config.pop("max.message.bytes", None)
        largest = known["max.message.bytes"].value if "max.message.bytes" in known else "0"
        # Also a broker's, or its records are refused. A smaller one is of batches as they are
        # compressed, which says nothing of records.
        if int(largest) > TopicConfig.of({}).max_message_bytes:
            config["max.message.bytes"] = largest
        if int(largest) > LARGEST_RECORD_BYTES:
            _logger.warning(
                "topic %s of Kafka takes records of %s bytes; here the most is %d",
                *(topic, largest, LARGEST_RECORD_BYTES),
            )
            config["max.message.bytes"] = str(LARGEST_RECORD_BYTES)
        return config

    # -- positions -------------------------------------------------------------------------------

    def _make_positions(self) -> None:
        topics = self._source.store.topics
        if not topics.list([POSITIONS]):
            with suppress(TopicAlreadyExists):  # another bridge was faster
                topics.create(POSITIONS, config={"cleanup.policy": "compact"})

    def _read_positions(self, positions: Positions) -> dict[TopicPartition, int]:
        # Also behind what other bridges have not decided yet.
        found = self._source.store.scan(
            POSITIONS, columns=["key", "value"], latest=True, isolation_level="snapshot"
        ).to_arrow()
        columns = (found[name].to_pylist() for name in ("key", "value"))
        return positions.decode(POSITIONS, zip(*columns, strict=True))

    def _assign(self) -> None:
        kafka = self._kafka
        self._ended.clear()
        begin = [
            kafka.TopicPartition(*where, self._next.get(where, kafka.OFFSET_BEGINNING))
            for where in self._partitions
        ]
        with reported("reading from Kafka"):
            self._consumer.assign(begin)

    # -- records ---------------------------------------------------------------------------------

    def _take(self, messages: list[Any]) -> None:
        """Send what was read."""
        by_topic: dict[str, list[Any]] = {}
        events = []
        for message in messages:
            if message.error() is None:
                by_topic.setdefault(message.topic(), []).append(message)
            else:
                events.append(message)
        for topic, mine in by_topic.items():
            self._send(topic, mine)
        for message in events:
            self._note(message)

    def _send(self, topic: str, messages: list[Any]) -> None:
        assert self._producer is not None
        if not self._progress.is_open:
            self._producer.begin_transaction()
        partitions = [message.partition() for message in messages]
        # Of each partition the last one, since a client hands them out in order.
        ends = dict(zip(partitions, [message.offset() for message in messages], strict=True))
        moved = {TopicPartition(topic, number): last + 1 for number, last in ends.items()}
        batch = _columns(messages, partitions)
        self._progress.add(len(messages), moved)
        self._next.update(moved)
        try:
            self._producer.send_batch(topic, batch)
        except (InvalidRecord, RecordTooLarge) as error:
            raise self._refused(topic, messages) or error from error
        fitting = _MOST_BYTES * len(messages) // max(batch.nbytes, 1)
        self._at_once = min(max(fitting, 1), _MOST_AT_ONCE)

    def _refused(self, topic: str, messages: list[Any]) -> BridgeFailed | None:
        """The error for a batch with a record that the store's topic refuses; names the record."""
        judge = self._source.store.producer()
        try:
            for message in messages:
                try:
                    judge.send_batch(topic, _columns([message], [message.partition()]))
                except (InvalidRecord, RecordTooLarge) as error:
                    return BridgeFailed(
                        f"{topic}:{message.partition()}: the store does not take the record at "
                        f"offset {message.offset()} of Kafka, and what is behind it waits until "
                        f"the topic takes it, or Kafka has it no more: {error}"
                    )
        finally:
            judge.close(flush=False)
        return None

    def _note(self, message: Any) -> None:  # noqa: ANN401 - confluent_kafka.Message
        """An event of a partition: its end, or an error."""
        error = message.error()
        where = TopicPartition(message.topic(), message.partition())
        if error.name() == client.END:
            # Behind markers of transactions, which are no records.
            self._pass_over(where, message.offset())
            self._ended.add(where)
        elif error.name() == client.NO_OFFSET:
            self._pass_over(where, self._skip_lost(where, self._next.get(where, 0)))
            self._assign()
        else:
            raise failure(f"reading {where.topic}:{where.partition} from Kafka", error)

    def _pass_over(self, where: TopicPartition, offset: int) -> None:
        """Note that nothing before this offset is still to be copied."""
        if offset > self._next.get(where, 0):
            self._next[where] = offset
            self._progress.add(0, {where: offset})

    def _skip_lost(self, where: TopicPartition, position: int) -> int:
        """The position to go on from if there is no record at ``position``. Raises BridgeFailed."""
        with reported(f"the offsets of {where.topic}:{where.partition}"):
            low, high = self._consumer.get_watermark_offsets(
                self._kafka.TopicPartition(*where), timeout=client.WAIT_S
            )
        if position > high:
            raise BridgeFailed(
                f"{where.topic}:{where.partition} was copied up to offset {position}, and ends at "
                f"{high} in Kafka: the topic was made anew, or lost records there; to copy it from "
                "the beginning, run a bridge of another name"
            )
        if position < low and not self._source.skip_lost:
            raise BridgeFailed(
                f"{where.topic}:{where.partition}: Kafka has deleted the records from offset "
                f"{position} on, before they were copied, and begins at {low}; to go on there, "
                "skip what is lost (skip_lost=True, --skip-lost)"
            )
        _logger.warning("%s:%d goes on at %d, after %d", *where, max(low, position), position)
        return int(max(low, position))

    def _commit(self, positions: Positions) -> None:
        assert self._producer is not None
        if not self._progress.is_open:
            self._producer.begin_transaction()
        keys, values = positions.encode(self._progress.moved())
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        batch = pa.RecordBatch.from_pydict(columns)
        self._producer.send_batch(POSITIONS, batch, partition=0)
        self._producer.flush()
        for topic in {where.topic for where in self._progress.moved()}:
            # As of the flush, or later: what was placed is in the topic of the positions.
            now = self._source.store.logs.topic(topic).spec().topic_id
            if now != positions.topic_ids[topic]:
                raise passing(f"topic {topic!r} of the store was made anew meanwhile")
        self._producer.commit_transaction()
        self._progress.committed(self._lag())

    def _lag(self) -> int:
        """Offsets that are still to be read, as far as the client knows the ends."""
        lag = 0
        for where, position in self._next.items():
            at = self._kafka.TopicPartition(*where)
            with suppress(self._kafka.KafkaException):
                _, high = self._consumer.get_watermark_offsets(at, cached=True)
                lag += max(high - position, 0)
        return lag


def _columns(messages: list[Any], partitions: list[int]) -> pa.RecordBatch:
    """Messages as Arrow. Times that Kafka does not know are left to the writer."""
    times = [message.timestamp() for message in messages]
    columns = {
        "key": pa.array([message.key() for message in messages], pa.binary()),
        "value": pa.array([message.value() for message in messages], pa.binary()),
        "partition": pa.array(partitions, pa.int32()),
        "timestamp": pa.array([time if kind else None for kind, time in times], pa.int64()),
    }
    headers = [message.headers() for message in messages]
    if any(headers):
        columns["headers"] = pa.array(headers, HEADERS_TYPE)
    return pa.RecordBatch.from_pydict(columns)
