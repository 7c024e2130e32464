"""The options of batch reads and writes: Spark's Kafka names, parsed into typed values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from txnlog.config import WriterCodec
from txnlog.errors import InvalidOption
from txnlog.names import check_group_id, check_topic, check_transactional_id
from txnlog.read.isolation import ISOLATION_LEVELS
from txnlog.spark.given import KAFKA_GROUP_ID, KAFKA_SPELLINGS, Given
from txnlog.spark.positions import GROUP, Position, parse_ending, parse_starting
from txnlog.spark.subscription import Subscription, parse_subscription
from txnlog.spark.tasks import TaskSizes
from txnlog.write.partitioner import DEFAULT_PARTITIONER, check_partitioner

STAGING = "txnlog.staging"
"""Set by ``transaction(...)`` on its writes, never by people: where to leave the manifest."""

SNAPSHOT = "snapshot"
"""The isolation level that batches alone have."""

PINNED_TOPICS = "txnlog.topics"
"""Set by ``transaction(...)`` on its reads: JSON of the topics' ids, which must be the same."""

READ_OPTIONS = (
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "isolation.level",
    "group.id",
    KAFKA_GROUP_ID,
    "transactional.id",
    "transaction.timeout.ms",
    "maxRecords",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
    "includeHeaders",
    "columns",
    "failOnDataLoss",
    "unsafeSingleWriter",
)
WRITE_OPTIONS = (
    "path",
    "topic",
    "includeHeaders",
    "partitioner",
    "compression.type",
    "compression.level",
    "transactional.id",
    "transaction.timeout.ms",
    "outsideTransaction",
    "unsafeSingleWriter",
)
RATE_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_CHECKPOINT = "checkpointLocation"
"""Spark hands it to a streaming write, with the options that are for us."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read asks for. ``starting`` None: where the group is, else at the earliest."""

    path: str
    storage_options: Mapping[str, object] = field(repr=False)  # secrets among them
    subscription: Subscription
    starting: Position | None
    ending: Position
    isolation_level: str
    group_id: str | None
    transactional_id: str | None
    transaction_timeout_ms: int | None
    max_records: int | None
    task_sizes: TaskSizes
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    topic_ids: Mapping[str, str]
    unsafe_single_writer: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write asks for. ``include_headers`` None: if there is such a column."""

    path: str
    storage_options: Mapping[str, object] = field(repr=False)  # secrets among them
    topic: str | None
    include_headers: bool | None
    partitioner: str
    codec: WriterCodec | None
    transactional_id: str | None
    transaction_timeout_ms: int | None
    staging: str | None
    outside_transaction: bool
    unsafe_single_writer: bool


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read. Raises InvalidOption and what the checks of names raise."""
    others = {"write": WRITE_OPTIONS, "stream": RATE_OPTIONS}
    mine = {name: value for name, value in options.items() if name != PINNED_TOPICS}
    given = Given(mine, READ_OPTIONS, "read", others)
    include_headers = given.boolean("includeHeaders") or False
    starting = parse_starting(given)
    group_id = _followed_group(given, starting)
    parsed = ReadOptions(
        path=given.path(),
        storage_options=given.storage,
        subscription=parse_subscription(given),
        starting=None if starting == GROUP else starting,
        ending=parse_ending(given),
        isolation_level=given.get("isolation.level") or "read_committed",
        group_id=group_id,
        transactional_id=given.get("transactional.id"),
        transaction_timeout_ms=given.whole_number("transaction.timeout.ms"),
        max_records=given.whole_number("maxRecords"),
        task_sizes=TaskSizes.parse(given),
        columns=parse_columns(given.get("columns"), include_headers),
        fail_on_data_loss=given.boolean("failOnDataLoss") is not False,
        topic_ids=_topic_ids(options.get(PINNED_TOPICS)),
        unsafe_single_writer=given.boolean("unsafeSingleWriter") or False,
    )
    _check_read(parsed, kafka_group=given.get(KAFKA_GROUP_ID) is not None)
    return parsed


def parse_write(options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """Parse the options of a write. Raises InvalidOption and what the checks of names raise.

    A streaming write is a transaction in any case: it has a transactional id of its own.
    """
    staging = options.get(STAGING)
    mine, viewed = _of_view({name: value for name, value in options.items() if name != STAGING})
    known = (*WRITE_OPTIONS, _CHECKPOINT) if streaming else WRITE_OPTIONS
    given = Given(mine, known, "write", {"read": READ_OPTIONS, "stream": RATE_OPTIONS})
    topic, transactional_id = given.get("topic") or viewed, given.get("transactional.id")
    timeout_ms = given.whole_number("transaction.timeout.ms")
    if topic is not None:
        check_topic(topic)
    if transactional_id is not None:
        check_transactional_id(transactional_id)
    elif timeout_ms is not None and not streaming:
        raise InvalidOption("option transaction.timeout.ms has no effect without transactional.id")
    outside = given.boolean("outsideTransaction") or False
    if outside and (streaming or staging is not None or transactional_id is not None):
        raise InvalidOption(
            "option outsideTransaction is for a write that is no part of a transaction; this one "
            "is: "
            + (
                f"it has transactional.id {transactional_id!r}"
                if transactional_id
                else "a batch of a stream, or a write of transaction(...)"
            )
        )
    return WriteOptions(
        path=given.path(),
        storage_options=given.storage,
        topic=topic,
        include_headers=given.boolean("includeHeaders"),
        partitioner=check_partitioner(given.get("partitioner") or DEFAULT_PARTITIONER),
        codec=WriterCodec.parse(given.get("compression.type"), given.level("compression.level")),
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        staging=staging,
        outside_transaction=outside,
        unsafe_single_writer=given.boolean("unsafeSingleWriter") or False,
    )


def parse_columns(text: str | None, include_headers: bool) -> tuple[str, ...]:
    from txnlog.spark.rows import COLUMNS

    if text is None:
        return COLUMNS if include_headers else tuple(c for c in COLUMNS if c != "headers")
    chosen = tuple(name.strip() for name in text.split(","))
    for name in chosen:
        if name not in COLUMNS:
            raise InvalidOption(
                f"option columns: there is no {name!r}; known: {', '.join(COLUMNS)}"
            )
    if len(set(chosen)) != len(chosen):
        raise InvalidOption("option columns names a column twice")
    if include_headers and "headers" not in chosen:
        raise InvalidOption("option includeHeaders is true, but columns leaves headers out")
    return chosen


def _of_view(options: Mapping[str, str]) -> tuple[Mapping[str, str], str | None]:
    """The options of a write, and the topic of the SQL view that is written to, if it is one.

    ``INSERT INTO`` a temporary view arrives with the options that the view reads with.
    """
    by_name = {name.lower(): value for name, value in options.items()}
    if "subscribe" not in by_name:
        return options, None
    for_reads = {name.lower() for name in READ_OPTIONS} - {name.lower() for name in WRITE_OPTIONS}
    for_reads |= {f"kafka.{name}" for name in for_reads & {*KAFKA_SPELLINGS}}
    topics = [topic.strip() for topic in by_name["subscribe"].split(",")]
    rest = {name: value for name, value in by_name.items() if name not in for_reads}
    return rest, topics[0] if len(topics) == 1 else None


def _topic_ids(text: str | None) -> Mapping[str, str]:
    if text is None:
        return {}
    try:
        found: dict[str, str] = dict(json.loads(text))
    except (ValueError, TypeError):
        raise InvalidOption(f"option {PINNED_TOPICS} is set by txnlog itself; remove it") from None
    return found


def _followed_group(given: Given, starting: Position | str | None) -> str | None:
    """The group whose offsets count. ``kafka.group.id`` by itself does not say that they do."""
    own, kafka = given.get("group.id"), given.get(KAFKA_GROUP_ID)
    if own is not None and kafka is not None and own != kafka:
        raise InvalidOption(f"options group.id and {KAFKA_GROUP_ID} contradict each other")
    if kafka is not None:
        check_group_id(kafka)
    if starting != GROUP:
        return own
    if own is None and kafka is None:
        raise InvalidOption(
            "option startingOffsets=group starts at a group's offsets: give group.id, which one"
        )
    return kafka if own is None else own


def _check_read(options: ReadOptions, *, kafka_group: bool) -> None:
    if options.isolation_level not in ISOLATION_LEVELS:
        raise InvalidOption(
            "option isolation.level must be read_committed, read_uncommitted or snapshot, "
            f"not {options.isolation_level!r:.100}"
        )
    if options.group_id is not None:
        check_group_id(options.group_id)
        if options.isolation_level == SNAPSHOT:
            raise InvalidOption(
                "option isolation.level=snapshot is for a read that follows no group: it shows "
                "what is committed behind a transaction that is still open, and a group's offsets "
                "cannot tell what of it was read. Remove group.id (and startingOffsets=group), or "
                "read with read_committed"
            )
    if options.transactional_id is None:
        if options.transaction_timeout_ms is not None:
            raise InvalidOption(
                "option transaction.timeout.ms has no effect without transactional.id"
            )
        return
    check_transactional_id(options.transactional_id)
    if options.isolation_level != "read_committed":
        raise InvalidOption(
            "option isolation.level must be read_committed for a read with transactional.id: what "
            "is not committed cannot be consumed exactly once"
            if options.isolation_level != SNAPSHOT
            else "option isolation.level must be read_committed for a read with transactional.id: "
            "a group's offsets cannot tell what of a snapshot was read"
        )
    if options.group_id is None:
        kafka = (
            f"; {KAFKA_GROUP_ID} does not say that, as it does not in Spark's Kafka source"
            if kafka_group
            else ""
        )
        raise InvalidOption(
            "option transactional.id on a read also needs group.id: the group whose offsets the "
            f"transaction moves{kafka}"
        )
