"""The options of a batch read: Spark's Kafka names, parsed into typed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec

from txnlog.errors import InvalidOption
from txnlog.limits import AnyNumber, Name, Offset, PartitionNumber, PerPartition
from txnlog.names import check_group_id, check_transactional_id
from txnlog.read.isolation_levels import ISOLATION_LEVELS
from txnlog.read.time_travel import moment_ms
from txnlog.spark.options.columns import ColumnChoice, parse_columns
from txnlog.spark.options.option_names import (
    AT_TIMESTAMP,
    AT_TOKEN,
    KAFKA_GROUP_ID,
    ORIGIN,
    PINNED_SNAPSHOT,
    PINNED_SPANS,
    PRE_IMAGES,
    RATE_OPTIONS,
    READ_OPTIONS,
    SINCE_TIMESTAMP,
    SINCE_TOKEN,
    WRITE_OPTIONS,
)
from txnlog.spark.options.option_values import OptionValues, whole_number
from txnlog.spark.options.positions import GROUP, Position, parse_ending, parse_starting
from txnlog.spark.options.store_options import parse_address
from txnlog.spark.options.subscription import Subscription, parse_subscription
from txnlog.spark.options.task_sizes import TaskSizes
from txnlog.storage.base import Address

Spans = Mapping[str, Mapping[int, Sequence[tuple[int, int]]]]
"""Offsets [start, stop), by topic and partition."""
_SPANS: msgspec.json.Decoder[Spans] = msgspec.json.Decoder(
    Annotated[
        dict[
            Name,
            Annotated[
                dict[PartitionNumber, Annotated[list[tuple[Offset, Offset]], AnyNumber]],
                PerPartition,
            ],
        ],
        AnyNumber,
    ]
)

SNAPSHOT = "snapshot"
"""The isolation level that only batches have."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A read's options. ``starting`` None: at the group's offsets, else at the earliest.

    ``snapshot``: a token of what the driver has pinned, of which ``spans`` are read. ``origin``:
    JSON of the ``transaction(...)`` that it belongs to. ``at``: the topics as of a time (ms), or of
    a token. ``pre_images``: a feed of changes, of a batch those after ``since``, which is like
    ``at``. ``passed_over`` names the options without effect.
    """

    address: Address
    subscription: Subscription
    starting: Position | None
    ending: Position
    isolation_level: str
    group_id: str | None
    transactional_id: str | None
    transaction_timeout_ms: int | None
    max_records: int | None
    task_sizes: TaskSizes
    columns: ColumnChoice
    fail_on_data_loss: bool
    skip_damaged: bool = False
    snapshot: str | None = None
    spans: Spans | None = None
    origin: str | None = None
    at: int | str | None = None
    pre_images: bool = False
    since: int | str | None = None
    passed_over: Sequence[str] = ()


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read.

    Rates are for streams, and have no effect in a batch, as in Spark's Kafka source. Raises
    InvalidOption: all that is wrong with them; TxnlogError: one name of a topic, a group or a
    transactional id, if nothing else is wrong.
    """
    own = (ORIGIN, PINNED_SNAPSHOT, PINNED_SPANS)
    mine = {name: value for name, value in options.items() if name not in own}
    values = OptionValues(mine, READ_OPTIONS, "read", {"write": WRITE_OPTIONS}, RATE_OPTIONS)
    parsed = parse_range(values, options)
    values.raise_errors()
    return parsed


def parse_range(values: OptionValues, options: Mapping[str, str]) -> ReadOptions:
    """The options common to batches and streams; errors are kept by the values.

    ``options`` are those that txnlog sets for itself, and others.
    """
    tried = values.tried
    include_headers = tried(lambda: values.boolean("includeHeaders")) or False
    errors_before = values.error_count
    starting = tried(lambda: parse_starting(values))
    group_id = tried(lambda: _choose_group(values, starting))
    group_is_known = values.error_count == errors_before
    parsed = ReadOptions(
        address=tried(lambda: parse_address(values)),
        subscription=tried(lambda: parse_subscription(values)),
        starting=None if starting == GROUP else starting,
        ending=tried(lambda: parse_ending(values)),
        isolation_level=values.get("isolation.level") or "read_committed",
        group_id=group_id,
        transactional_id=values.get("transactional.id"),
        transaction_timeout_ms=tried(lambda: values.positive("transaction.timeout.ms")),
        max_records=tried(lambda: values.positive("maxRecords")),
        task_sizes=TaskSizes.parse(values),
        columns=tried(lambda: parse_columns(values.get("columns"), include_headers)),
        fail_on_data_loss=tried(lambda: values.boolean("failOnDataLoss")) is not False,
        skip_damaged=tried(lambda: _parse_on_corrupt(values)),
        snapshot=options.get(PINNED_SNAPSHOT),
        spans=tried(lambda: _parse_spans(options.get(PINNED_SPANS))),
        origin=options.get(ORIGIN),
        at=tried(lambda: _parse_at(values, AT_TIMESTAMP, AT_TOKEN)),
        pre_images=tried(lambda: values.boolean(PRE_IMAGES)) or False,
        since=tried(lambda: _parse_at(values, SINCE_TIMESTAMP, SINCE_TOKEN)),
        passed_over=tuple(values.passed_over),
    )
    tried(lambda: _check_isolation(parsed))
    if parsed.at is not None:
        tried(lambda: _check_past(parsed, by_pattern=values.get("subscribePattern") is not None))
    tried(lambda: _check_feed(parsed, values))
    if group_is_known:
        tried(lambda: _check_group(parsed))
        tried(lambda: _check_transaction(parsed, values))
    return parsed


def _parse_at(values: OptionValues, by_time: str, by_token: str) -> int | str | None:
    time, token = values.get(by_time), values.get(by_token)
    if time is None or token is not None:
        if time is not None:
            raise InvalidOption(f"options {by_time} and {by_token} contradict each other")
        return token
    text = time.strip()
    if (number := whole_number(text)) is not None:
        return number
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        if moment.utcoffset() is not None:
            return moment_ms(moment)
    raise InvalidOption(
        f"option {by_time} must be milliseconds since 1970, or a time with a zone such as "
        f"2025-01-01T00:00:00Z, not {time!r:.100}"
    )


def _parse_on_corrupt(values: OptionValues) -> bool:
    text = (values.get("onCorrupt") or "raise").strip().lower()
    if text not in ("raise", "skip"):
        raise InvalidOption(f"option onCorrupt must be raise or skip, not {text!r:.100}")
    return text == "skip"


def _parse_spans(text: str | None) -> Spans | None:
    if text is None:
        return None
    try:
        return _SPANS.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidOption(f"option {PINNED_SPANS} is set by txnlog itself; remove it") from None


def _choose_group(values: OptionValues, starting: Position | str | None) -> str | None:
    """The group whose offsets count. ``kafka.group.id`` alone does not use them."""
    own, kafka = values.get("group.id"), values.get(KAFKA_GROUP_ID)
    if own is not None and kafka is not None and own != kafka:
        raise InvalidOption(f"options group.id and {KAFKA_GROUP_ID} contradict each other")
    if kafka is not None:
        check_group_id(kafka)
    if starting != GROUP:
        return own
    if own is None and kafka is None:
        raise InvalidOption(
            "option startingOffsets=group starts at a group's offsets: give group.id to say whose"
        )
    return kafka if own is None else own


def _check_isolation(options: ReadOptions) -> None:
    if options.isolation_level not in ISOLATION_LEVELS:
        raise InvalidOption(
            "option isolation.level must be read_committed, read_uncommitted or snapshot, "
            f"not {options.isolation_level!r:.100}"
        )


def _check_past(options: ReadOptions, *, by_pattern: bool) -> None:
    which = f"options {AT_TIMESTAMP} and {AT_TOKEN} are for a read that"
    if options.group_id is not None:
        raise InvalidOption(f"{which} follows no group: its offsets are those of now")
    if options.isolation_level != "read_committed":
        raise InvalidOption(f"{which} shows what was committed: leave isolation.level out")
    if by_pattern:
        raise InvalidOption(f"{which} names its topics: give subscribe, not a pattern")


def _check_feed(options: ReadOptions, values: OptionValues) -> None:
    if not options.pre_images:
        if options.since is not None:
            raise InvalidOption(
                f"options {SINCE_TIMESTAMP} and {SINCE_TOKEN} are where a feed of changes begins: "
                f"give {PRE_IMAGES}=true"
            )
        return
    which = f"option {PRE_IMAGES} is for a feed of changes, which"
    if options.isolation_level != "read_committed":
        raise InvalidOption(f"{which} shows what was committed: leave isolation.level out")
    if options.skip_damaged:
        raise InvalidOption(f"{which} must not pass any record: leave onCorrupt out")
    if values.get("subscribe") is None or len(options.subscription.topics) != 1:
        raise InvalidOption(f"{which} is of one topic: give its name as subscribe")


def _check_group(options: ReadOptions) -> None:
    if options.group_id is None:
        return
    check_group_id(options.group_id)
    if options.isolation_level == SNAPSHOT:
        raise InvalidOption(
            "option isolation.level=snapshot is for a read that follows no group: it shows "
            "what is committed behind a transaction that is still open, and a group's offsets "
            "cannot tell what of it was read. Remove group.id (and startingOffsets=group), or "
            "read with read_committed"
        )


def _check_transaction(options: ReadOptions, values: OptionValues) -> None:
    if options.transactional_id is None:
        if values.get("transaction.timeout.ms") is not None:
            raise InvalidOption(
                "option transaction.timeout.ms has no effect without transactional.id"
            )
        return
    check_transactional_id(options.transactional_id)
    if options.isolation_level == SNAPSHOT and options.group_id is None:
        raise InvalidOption(
            "option isolation.level must be read_committed for a read with transactional.id: "
            "a group's offsets cannot tell what of a snapshot was read"
        )
    if options.isolation_level == "read_uncommitted":
        raise InvalidOption(
            "option isolation.level must be read_committed for a read with transactional.id: what "
            "is not committed cannot be consumed exactly once"
        )
    if options.group_id is None:
        kafka = (
            f"; {KAFKA_GROUP_ID} does not say that, as it does not in Spark's Kafka source"
            if values.get(KAFKA_GROUP_ID) is not None
            else ""
        )
        raise InvalidOption(
            "option transactional.id on a read also needs group.id: the group whose offsets the "
            f"transaction moves{kafka}"
        )
