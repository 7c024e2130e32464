"""From Kafka into a store: the records and the position in Kafka are committed together.

One process copies for a bridge's name: the transactional id made of it fences an older one. After a
failure everything is read anew: the fence ends what was open, and the positions say what is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self

import pyarrow as pa

from txnlog.bridge import client
from txnlog.bridge.client import Cluster, failure, reported
from txnlog.bridge.positions import POSITIONS, make_positions, positions_batch, read_positions
from txnlog.bridge.progress import BridgeCommit
from txnlog.errors import (
    BridgeFailed,
    CommitStateUnknown,
    InvalidOption,
    ProducerFenced,
    StorageError,
    TopicAlreadyExists,
    TxnlogError,
)
from txnlog.names import TopicPartition, check_topic, check_transactional_id
from txnlog.producer import Producer
from txnlog.segments.records import HEADERS_TYPE
from txnlog.store import Store

_AT_ONCE: Final = 10_000
"""Records that are taken from the client in one call."""
_LOOK_S: Final = 1.0
_METADATA_S: Final = 300.0
"""How often it looks for partitions that were added."""
_CONFIG_WAIT_S: Final = 10.0
_ATTEMPTS: Final = 5
_COPIED_CONFIG: Final = ("cleanup.policy", "max.message.bytes", "retention.bytes", "retention.ms")

_logger = logging.getLogger(__name__)


class KafkaSource:
    """Copies topics of a Kafka cluster into topics of the same names.

    Keys, values, headers, times and partitions stay as they are; offsets do not, since Kafka's have
    gaps. Topics that are not there are created, with Kafka's partitions and retention; partitions
    that were added there are added here.

    Args:
        store: where to.
        servers: ``broker:9092``, or several with commas; ``kafka://`` may stand before.
        topics: their names.
        name: of the bridge. Its positions are kept under it, and one process runs under it.
        options: of librdkafka, such as ``security.protocol``. They are in no message and no file.
        commit_interval_ms: how much time's records are in one transaction.
        skip_lost: go on behind records that Kafka has deleted before they were copied.

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
        self.transactional_id = check_transactional_id(f"kafka-bridge-{name}")
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
        """Copy.

        Args:
            until_end: stop when everything is copied that Kafka has now; else it goes on.
            report: is told of each commit.
            is_stopped: asked about once a second; true ends it after a commit.

        Raises:
            BridgeFailed: Kafka refuses something, has deleted records that were not copied, or a
                newer instance has taken over.
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
            except ProducerFenced as error:
                raise BridgeFailed(
                    f"a newer instance of bridge {self.name!r} has taken over; stop one of them"
                ) from error
            except (BridgeFailed, StorageError, CommitStateUnknown) as error:
                attempts -= 1
                is_final = isinstance(error, BridgeFailed | StorageError) and not error.retriable
                if is_final or not attempts or is_stopped():
                    raise
                _logger.warning("bridge %s begins again: %s", self.name, error)
                self._clock.sleep(2.0 ** (_ATTEMPTS - attempts) * self._clock.jitter())


class _Copying:
    """One attempt: it begins with the positions, and ends at the first failure."""

    def __init__(self, source: KafkaSource) -> None:
        self._kafka = client.load()
        self._source = source
        self._store = store = source.store
        self._clock = store.logs.clock
        self._next: dict[TopicPartition, int] = {}
        self._moved: set[TopicPartition] = set()
        self._ended: set[TopicPartition] = set()
        self._count = 0
        self._is_open = False
        self._cluster_id = ""
        self._ids: dict[str, str] = {}
        self._looked_s = 0.0
        self._consumer = source.cluster.consumer(source.name)
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._producer is not None:
                self._producer.close(flush=False)
        finally:
            self._consumer.close()

    def run(
        self,
        until_end: bool,
        report: Callable[[BridgeCommit], object],
        is_stopped: Callable[[], bool],
    ) -> None:
        partitions = self._look_for_partitions()
        make_positions(self._store)
        interval_ms = int(self._source.interval_s * 1000)
        self._producer = self._store.producer(
            transactional_id=self._source.transactional_id,
            transaction_timeout_ms=max(60_000, 3 * interval_ms),
        )
        # From here on an older instance cannot commit, so the positions are the last ones.
        self._producer.init_transactions()
        self._next = read_positions(self._store, self._source.name, self._cluster_id, self._ids)
        self._assign(partitions)
        begun_s = self._clock.monotonic_s()
        while True:
            with reported("reading from Kafka"):
                messages = self._consumer.consume(_AT_ONCE, _LOOK_S)
            if messages and not self._is_open:
                begun_s = self._clock.monotonic_s()
            self._take(messages)
            is_over = is_stopped() or (until_end and self._ended >= {*partitions})
            if is_over or self._clock.monotonic_s() - begun_s >= self._source.interval_s:
                self._commit(report)
            if is_over:
                return
            if self._clock.monotonic_s() - self._looked_s > _METADATA_S:
                found = self._look_for_partitions()
                if found != partitions:
                    partitions = found
                    self._assign(partitions)

    # -- partitions ------------------------------------------------------------------------------

    def _look_for_partitions(self) -> list[TopicPartition]:
        """The partitions of the topics, which are made here too."""
        found = []
        for topic in self._source.topics:
            with reported(f"topic {topic!r} of Kafka"):
                metadata = self._consumer.list_topics(topic, timeout=client.WAIT_S)
            known = metadata.topics.get(topic)
            if known is None or known.error is not None or not known.partitions:
                why = known.error.str() if known is not None and known.error else "unknown"
                raise BridgeFailed(f"Kafka has no topic {topic!r} that can be read: {why}")
            self._cluster_id = metadata.cluster_id or ""
            self._make_topic(topic, len(known.partitions))
            found += [TopicPartition(topic, number) for number in sorted(known.partitions)]
        self._looked_s = self._clock.monotonic_s()
        return found

    def _make_topic(self, topic: str, partitions: int) -> None:
        topics = self._store.topics
        if not topics.list([topic]):
            try:
                topics.create(topic, partitions=partitions, config=self._config_of(topic))
            except TopicAlreadyExists:
                _logger.debug("topic %s was made by another process", topic)
        there = topics.describe(topic)
        self._ids[topic] = there.topic_id
        if there.schema is not None:
            raise BridgeFailed(
                f"topic {topic!r} of the store has columns; records of Kafka have keys and values: "
                "delete it, or copy into another store"
            )
        if len(there.partitions) < partitions:
            topics.alter(topic, partitions=partitions)

    def _config_of(self, topic: str) -> dict[str, str]:
        """What was set for the topic in Kafka and means the same here; nothing if untold."""
        from confluent_kafka.admin._config import ConfigResource

        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            admin = self._source.cluster.admin()
            (future,) = admin.describe_configs([resource]).values()
            told = future.result(_CONFIG_WAIT_S)
        except (self._kafka.KafkaException, TimeoutError) as error:
            _logger.warning("settings of topic %s were not told by Kafka: %s", topic, error)
            return {}
        return {
            name: told[name].value
            for name in _COPIED_CONFIG
            if name in told and not told[name].is_default and told[name].value
        }

    def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        kafka = self._kafka
        self._ended.clear()
        with reported("reading from Kafka"):
            self._consumer.assign(
                [
                    kafka.TopicPartition(*where, self._next.get(where, kafka.OFFSET_BEGINNING))
                    for where in partitions
                ]
            )

    # -- records ---------------------------------------------------------------------------------

    def _take(self, messages: list[Any]) -> None:
        """Send what was read."""
        good = [message for message in messages if message.error() is None]
        events = [m for m in messages if m.error() is not None] if len(good) < len(messages) else ()
        by_topic: dict[str, list[Any]] = {}
        if len(self._source.topics) == 1:
            by_topic[self._source.topics[0]] = good
        else:
            for message in good:
                by_topic.setdefault(message.topic(), []).append(message)
        for topic, mine in by_topic.items():
            if mine:
                self._send(topic, mine)
        for message in events:
            self._note(message)

    def _send(self, topic: str, messages: list[Any]) -> None:
        assert self._producer is not None
        if not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True
        partitions = [message.partition() for message in messages]
        # Of each partition the last one, since a client hands them out in order.
        ends = dict(zip(partitions, [message.offset() for message in messages], strict=True))
        for number, last in ends.items():
            where = TopicPartition(topic, number)
            self._next[where] = last + 1
            self._moved.add(where)
        self._producer.send_batch(topic, _columns(messages, partitions))
        self._count += len(messages)

    def _note(self, message: Any) -> None:  # noqa: ANN401 - confluent_kafka.Message
        """An event of a partition: its end, or an error."""
        error, kafka = message.error(), self._kafka
        where = TopicPartition(message.topic(), message.partition())
        if error.name() == client.END:
            # Behind markers of transactions, which are no records.
            if message.offset() > self._next.get(where, -1):
                self._next[where] = message.offset()
            self._ended.add(where)
            return
        if error.name() != client.NO_OFFSET:
            raise failure(f"reading {where.topic}:{where.partition} from Kafka", error)
        at = kafka.TopicPartition(*where)
        with reported(f"the offsets of {where.topic}:{where.partition}"):
            low, high = self._consumer.get_watermark_offsets(at, timeout=client.WAIT_S)
        position = self._next.get(where)
        if position is not None and position > high:
            raise BridgeFailed(
                f"{where.topic}:{where.partition} was copied up to offset {position}, and ends at "
                f"{high} in Kafka: the topic was made anew, or lost records there; to copy it from "
                "the beginning, run a bridge of another name"
            )
        if not self._source.skip_lost:
            raise BridgeFailed(
                f"{where.topic}:{where.partition}: Kafka has deleted the records from offset "
                f"{position} on, before they were copied, and begins at {low}; to go on there, "
                "skip what is lost (skip_lost=True, --skip-lost)"
            )
        _logger.warning("%s:%d: the records from offset %s to %d are lost", *where, position, low)
        self._next[where] = low
        with reported("reading from Kafka"):
            self._consumer.seek(kafka.TopicPartition(*where, low))

    def _commit(self, report: Callable[[BridgeCommit], object]) -> None:
        if not self._is_open:
            return
        assert self._producer is not None
        positions = {where: self._next[where] for where in sorted(self._moved)}
        self._producer.send_batch(
            POSITIONS,
            positions_batch(self._source.name, self._cluster_id, self._ids, positions),
            partition=0,
        )
        self._producer.commit_transaction()
        count, self._count, self._is_open = self._count, 0, False
        self._moved.clear()
        report(BridgeCommit(self._clock.now_ms(), count, positions, self._lag()))

    def _lag(self) -> int:
        """Offsets that are still to be read, as far as the client knows the ends."""
        lag = 0
        for where, position in self._next.items():
            at = self._kafka.TopicPartition(*where)
            try:
                _, high = self._consumer.get_watermark_offsets(at, cached=True)
            except (self._kafka.KafkaException, TxnlogError):
                continue
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
