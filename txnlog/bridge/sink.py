"""From a store into Kafka: the records and the position here are committed together, there."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any, Final, Self

from txnlog.bridge import client
from txnlog.bridge.base import COPIED_CONFIG, LOOK_S, Bridge, CopyProgress
from txnlog.bridge.client import Cluster, passing, reported
from txnlog.bridge.positions import Positions
from txnlog.config import TopicConfig
from txnlog.consumer import Consumer
from txnlog.errors import (
    BridgeFailed,
    CorruptRecord,
    NoOffsetForPartition,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from txnlog.names import TopicPartition
from txnlog.read.consumer_reads import ConsumerRecord
from txnlog.store import Store

POSITIONS: Final = "_txnlog_positions"
"""What the topics with positions begin with: each bridge has one, since a transaction of one that
died must not hide another's."""
_AT_ONCE: Final = 1000
_MOST_BYTES: Final = 4 << 20
"""About how much is given to the client at once, before it is asked whether to commit."""

_TOPIC_ADVICE: Final = (
    "; raise max.message.bytes of the topic in Kafka, or if it is less than a batch of small "
    "records, lower the client's option batch.size"
)
_CLIENT_ADVICE: Final = (
    "; raise the client's options message.max.bytes and queue.buffering.max.kbytes, or leave them "
    "to the bridge"
)

_logger = logging.getLogger(__name__)


class KafkaSink(Bridge):
    """Copies topics of a store into topics of the same names of a cluster; see :class:`Bridge`.

    Keys, values, headers, times and partitions stay as they are. Rows of typed topics go out with
    their keys and values in JSON. Topics that are not there are created with as many partitions and
    the retention that was set here; of those that are, partitions that are missing are added. The
    time 0 becomes that of copying: to Kafka's client it means now.
    """

    _positions = POSITIONS
    largest_bytes = 0
    """Of the records that went out, if one was larger than its topic took when it was asked."""

    def _check_store(self) -> None:
        for topic in self.topics:
            self.store.topics.describe(topic)

    def _attempt(self, progress: CopyProgress) -> bool:
        with _Copying(self, progress) as copying:
            return copying.run()


class _Copying:
    """One attempt."""

    def __init__(self, sink: KafkaSink, progress: CopyProgress) -> None:
        self._kafka = client.load()
        self._sink = sink
        self._progress = progress
        store_id = sink.store.store_id
        self._positions_topic = _positions_topic(sink.name, sink.store)
        sink.largest_bytes = max(sink.largest_bytes, *map(self._largest_bytes, sink.topics))
        self._producer = sink.cluster.producer(
            f"txnlog-bridge-{sink.name}-{store_id}",
            sink.transaction_timeout_ms,
            sink.largest_bytes,
        )
        self._is_begun = False
        self._undelivered: list[tuple[ConsumerRecord, Any]] = []
        self._at_once = _AT_ONCE // 10
        # As JSON also rows of typed topics have keys and values.
        self._at: dict[TopicPartition, int] = {}
        self._reader: Consumer = sink.store.consumer(auto_offset_reset="none", as_json=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        if self._is_begun:
            try:
                self._producer.abort_transaction(client.WAIT_S)
            except self._kafka.KafkaException as error:
                _logger.warning("Kafka ends the transaction by its timeout: %s", error)

    def run(self) -> bool:
        reader, progress = self._reader, self._progress
        partitions = self._look_for_partitions()
        with reported("Kafka's transactions"):
            self._producer.init_transactions(client.WAIT_S)
        ids = self._topic_ids()
        positions = Positions(self._sink.name, self._sink.store.store_id, ids)
        there = self._there()
        made = {self._positions_topic: {"cleanup.policy": "compact"}}
        self._make_topics({self._positions_topic: 1}, there, made)
        known = read_positions(self._sink.cluster, self._sink.name, self._sink.store, positions)
        _check_there(known, there)
        made = {topic: self._config_of(topic) for topic in self._sink.topics}
        self._make_topics(Counter(where.topic for where in partitions), there, made)
        try:
            reader.assign(partitions)
            starts, ends = reader.beginning_offsets(partitions), reader.end_offsets(partitions)
            readable = self._readable_ends(partitions)
            if self._topic_ids() != ids:  # else from here on the reader would say so
                raise passing("a topic of the store was made anew meanwhile")
        except UnknownTopicOrPartition as error:
            raise passing(str(error)) from error
        self._seek(known, starts, ends)
        while True:
            try:
                records = reader.poll(timeout_ms=int(LOOK_S * 1000), max_records=self._at_once)
            except CorruptRecord:
                if progress.has_moved:  # or a run would never get to what is sound elsewhere
                    self._commit(positions, partitions)
                raise
            except (NoOffsetForPartition, OffsetOutOfRange, UnknownTopicOrPartition) as error:
                # Records were deleted, or the topic was: the next attempt goes on, or says so.
                if progress.has_moved:
                    self._commit(positions, partitions)
                raise passing(str(error)) from error
            if progress.is_idle():
                return False
            if records:
                self._send(records)
            else:
                progress.add(0, self._take_moved())
            at_end = all(reader.position(where) >= readable[where] for where in partitions)
            is_over = progress.is_over(at_end=at_end)
            has_grown = progress.may_have_grown() and self._look_for_partitions() != partitions
            if progress.has_moved and (is_over or has_grown or progress.is_due()):
                self._commit(positions, partitions)
            if is_over or has_grown:
                return is_over

    # -- topics ----------------------------------------------------------------------------------

    def _look_for_partitions(self) -> list[TopicPartition]:
        """The partitions of the topics in the store."""
        described = map(self._sink.store.topics.describe, self._sink.topics)
        return [
            TopicPartition(topic.topic, part.partition)
            for topic in described
            for part in topic.partitions
        ]

    def _largest_bytes(self, topic: str) -> int:
        """How large a record of this topic may be."""
        config = self._sink.store.topics.describe(topic).config
        return TopicConfig.of(config).max_message_bytes

    def _config_of(self, topic: str) -> dict[str, str]:
        """What was set for the topic in the store and means the same in Kafka.

        A store's limit is of one record, and a broker's of a batch of many: it is raised only.
        """
        config = self._sink.store.topics.describe(topic).config
        copied: dict[str, str] = {n: config[n] for n in COPIED_CONFIG if n in config}
        largest = int(copied.pop("max.message.bytes", "0"))
        if largest > TopicConfig.of({}).max_message_bytes:  # as much as Kafka's own default
            copied["max.message.bytes"] = str(largest + client.BATCH_BYTES)
        return copied

    def _topic_ids(self) -> dict[str, str]:
        """The ids of the topics in the store, by name."""
        describe = self._sink.store.topics.describe
        return {topic: describe(topic).topic_id for topic in self._sink.topics}

    def _there(self) -> dict[str, int]:
        """How many partitions each topic of Kafka has."""
        with reported("the topics of Kafka"):
            found = self._sink.cluster.admin().list_topics(timeout=client.WAIT_S).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def _make_topics(
        self,
        wanted: Mapping[str, int],
        there: Mapping[str, int],
        config: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Create the topics that Kafka lacks, and add the partitions that its topics lack."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            NewPartitions,
            NewTopic,
        )

        admin = self._sink.cluster.admin()
        for topic, count in wanted.items():
            known = there.get(topic, 0)
            with reported(f"topic {topic!r} of Kafka"):
                if known == 0:
                    made = admin.create_topics([NewTopic(topic, count, config={**config[topic]})])
                elif known < count:
                    made = admin.create_partitions([NewPartitions(topic, count)])
                else:
                    continue
                made[topic].result(client.WAIT_S)

    # -- positions -------------------------------------------------------------------------------

    def _seek(
        self,
        known: Mapping[TopicPartition, int],
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Begin where the last commit ended. Raises OffsetOutOfRange, BridgeFailed."""
        for where, log_start in starts.items():
            self._at[where] = position = known.get(where, log_start)
            if position > ends[where]:
                raise BridgeFailed(
                    f"{where.topic}:{where.partition} was copied up to offset {position}, and ends "
                    f"at {ends[where]} in the store, which has lost records since, as one that "
                    "was restored from a backup: to copy it from the beginning, run a bridge of "
                    "another name"
                )
            if position < log_start and not self._sink.skip_lost:
                raise OffsetOutOfRange(
                    f"{where.topic}:{where.partition}: the records from offset {position} to "
                    f"{log_start} were deleted before they were copied; to go on behind them, skip "
                    "what is lost (skip_lost=True, --skip-lost)"
                )
            self._reader.seek(where, max(position, log_start))

    def _take_moved(self) -> dict[TopicPartition, int]:
        """The positions that have moved since this was asked last."""
        at = self._reader.positions()
        moved = {where: offset for where, offset in at.items() if offset != self._at.get(where)}
        self._at.update(moved)
        return moved

    # -- records ---------------------------------------------------------------------------------

    def _send(self, records: list[ConsumerRecord]) -> None:
        """Produce records, one by one as Kafka's client takes them."""
        with reported("writing to Kafka"):
            self._begin()
            self._progress.add(len(records), self._take_moved())
            for record in records:
                told = partial(self._note_undelivered, record)
                try:
                    self._produce(
                        _size(record),
                        record.topic,
                        record.value,
                        record.key,
                        record.partition,
                        timestamp=record.timestamp,
                        headers=[*record.headers],
                        on_delivery=told,
                    )
                except self._kafka.KafkaException as error:
                    refused = _refusal([(record, error.args[0])], _CLIENT_ADVICE)
                    raise (refused or error) from error
            self._producer.poll(0)
        size = sum(map(_size, records))
        self._at_once = min(max(_MOST_BYTES * len(records) // max(size, 1), 1), _AT_ONCE)

    def _begin(self) -> None:
        if not self._is_begun:
            self._producer.begin_transaction()
            self._is_begun = True

    def _produce(self, size: int, *record: Any, **more: Any) -> None:  # noqa: ANN401 - the client's own
        """Raises BridgeFailed also if the transaction failed by what was produced before."""
        while True:
            try:
                self._producer.produce(*record, **more)
            except BufferError as error:  # what waits to be sent is as much as the client keeps
                if not len(self._producer):  # so it will never fit
                    if size > self._sink.largest_bytes:
                        self._sink.largest_bytes = size
                        raise passing(f"a record of {size} bytes needs a larger queue") from error
                    kafka = self._kafka
                    code = kafka.KafkaError(kafka.KafkaError.MSG_SIZE_TOO_LARGE)
                    raise kafka.KafkaException(code) from error
                self._producer.poll(0.1)
            except self._kafka.KafkaException as error:
                if error.args[0].name() != client.FAILED:
                    raise
                self._producer.poll(0.1)  # it tells why only now
                raise self._why_failed() from error
            else:
                return

    def _note_undelivered(self, record: ConsumerRecord, error: Any, _: object = None) -> None:  # noqa: ANN401 - KafkaError
        """Kafka's client tells that a record was not taken, and why; the cause comes first."""
        if error is not None:
            self._undelivered.append((record, error))

    def _why_failed(self) -> BridgeFailed:
        """Why the transaction cannot go on."""
        refused = _refusal(self._undelivered, _TOPIC_ADVICE)
        if refused is not None:
            return refused
        for _, error in self._undelivered:
            if error.name() in client.FENCED:  # another attempt would fence the newer instance
                return client.failure("writing to Kafka", error)
        told = [error.str() for _, error in self._undelivered[:1]]
        return passing(": ".join(["writing to Kafka: the transaction failed", *told]))

    def _commit(self, positions: Positions, partitions: list[TopicPartition]) -> None:
        progress = self._progress
        # What Kafka is told to have must stay in the store: others would get its offsets.
        self._sink.store.logs.confirm_ends((*where, at) for where, at in progress.moved().items())
        with reported("committing to Kafka"):
            self._begin()
            for key, value in zip(*positions.encode(progress.moved()), strict=True):
                self._produce(0, self._positions_topic, value, key, 0)
            self._commit_transaction()
        self._is_begun = False
        progress.committed(self._lag(partitions))

    def _commit_transaction(self) -> None:
        """Over a slow link it takes several calls until all that waits is sent."""
        clock = self._sink.store.logs.clock
        until_s = clock.monotonic_s() + self._sink.transaction_timeout_ms / 1000
        while True:
            try:
                self._producer.commit_transaction(client.WAIT_S)
            except self._kafka.KafkaException as error:
                refused = _refusal(self._undelivered, _TOPIC_ADVICE)
                if refused is not None:
                    raise refused from error
                if error.args[0].name() != client.TIMED_OUT or clock.monotonic_s() > until_s:
                    raise
            else:
                return

    def _readable_ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends that read_committed reaches now, by partition."""
        snapshot = self._sink.store.snapshot(self._sink.topics)
        ends = {topic: snapshot.end_offsets(topic) for topic in self._sink.topics}
        return {where: ends[where.topic].get(where.partition, 0) for where in partitions}

    def _lag(self, partitions: list[TopicPartition]) -> int:
        """Offsets that are still to be read."""
        try:
            ends = self._readable_ends(partitions)
        except UnknownTopicOrPartition:
            return 0  # it was deleted, as the next poll says
        at = self._reader.positions()
        return sum(max(ends[where] - at.get(where, 0), 0) for where in partitions)


def _size(record: ConsumerRecord) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _refusal(undelivered: list[tuple[ConsumerRecord, Any]], advice: str) -> BridgeFailed | None:
    """The error for records that Kafka refuses; None if they failed for other reasons.

    A broker refuses a whole request, and seldom says which record it was about.
    """
    refused = [(one, why) for one, why in undelivered if why.name() in client.REFUSED]
    if not refused:
        return None
    first, error = refused[0]
    where = (first.topic, first.partition)
    together = [one for one, _ in refused if (one.topic, one.partition) == where]
    found = f"one of the records from offset {first.offset} to {together[-1].offset}"
    if error.name() == client.TOO_LARGE:
        together = [max(together, key=_size)]
    else:
        advice = ""
    if len(together) == 1:
        found = f"the record at offset {together[0].offset}"
    return BridgeFailed(
        f"{first.topic}:{first.partition}: Kafka does not take {found} of the store, and what is "
        f"behind it waits: {error.str()}{advice}"
    )


def _check_there(known: Mapping[TopicPartition, int], there: Mapping[str, int]) -> None:
    """Raise BridgeFailed if a topic of Kafka is gone to which records were copied."""
    gone = sorted({where.topic for where in known if not there.get(where.topic)})
    if gone:
        raise BridgeFailed(
            f"Kafka has no topic {gone[0]!r} any more, to which this bridge has copied: "
            "restore it, or copy the topic from the beginning with a bridge of another name"
        )


def _positions_topic(name: str, store: Store) -> str:
    return f"{POSITIONS}.{name}.{store.store_id}"


def read_positions(
    cluster: Cluster, name: str, store: Store, positions: Positions
) -> dict[TopicPartition, int]:
    """The next offsets of a store that a bridge of this name copies. Raises BridgeFailed.

    Behind the bridge's own fence no older instance can add to them any more.
    """
    kafka, clock, topic = client.load(), store.logs.clock, _positions_topic(name, store)
    records: list[tuple[bytes | None, bytes | None]] = []
    consumer = cluster.consumer(f"txnlog-bridge-{name}")
    with closing(consumer), reported("reading the positions from Kafka"):
        consumer.assign([kafka.TopicPartition(topic, 0, kafka.OFFSET_BEGINNING)])
        until_s = clock.monotonic_s() + client.WAIT_S
        while clock.monotonic_s() < until_s:
            for message in client.take(consumer, _AT_ONCE, LOOK_S):
                error = message.error()
                if error is None:
                    records.append((message.key(), message.value()))
                    until_s = clock.monotonic_s() + client.WAIT_S
                elif error.name() == client.END:
                    return positions.decode(topic, records)
                else:
                    raise client.failure("reading the positions from Kafka", error)
    raise passing(f"topic {topic!r} of Kafka was not read in {client.WAIT_S:.0f} s")
