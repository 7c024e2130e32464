"""The options of a batch or streaming write: Spark's Kafka names, parsed into typed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from txnlog.config import WriterCodec
from txnlog.errors import InvalidOption
from txnlog.names import check_topic, check_transactional_id
from txnlog.spark.options.option_names import (
    FILLER,
    KAFKA_SPELLINGS,
    ORIGIN,
    PINNED_SNAPSHOT,
    PINNED_SPANS,
    RATE_OPTIONS,
    READ_OPTIONS,
    STAGING,
    WRITE_OPTIONS,
)
from txnlog.spark.options.option_values import OptionValues
from txnlog.spark.options.store_options import parse_address
from txnlog.storage.base import Address
from txnlog.write.partitioner import DEFAULT_PARTITIONER, check_partitioner

_CHECKPOINT = "checkpointLocation"
"""Spark passes it to a streaming write, with our options."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """A write's options. ``include_headers`` None: if there is such a column.

    ``staging``, ``origin`` and ``filler`` are of a write of ``transaction(...)``: where to stage
    its uploads, JSON of its block, and the first text of rows to drop.
    """

    address: Address
    topic: str | None
    include_headers: bool | None
    partitioner: str
    codec: WriterCodec | None
    transactional_id: str | None
    transaction_timeout_ms: int | None
    staging: str | None
    origin: str | None
    filler: str | None
    outside_transaction: bool
    passed_over: Sequence[str] = ()


def parse_write(options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """Parse the options of a write.

    A streaming write is always a transaction: it has its own transactional id. Raises
    InvalidOption: all that is wrong with them; TxnlogError: one name, or setting of a codec or a
    partitioner, if nothing else is wrong.
    """
    staging = options.get(STAGING)
    own = (FILLER, ORIGIN, STAGING)
    mine, viewed = _split_view_options({n: value for n, value in options.items() if n not in own})
    known = (*WRITE_OPTIONS, _CHECKPOINT) if streaming else WRITE_OPTIONS
    values = OptionValues(mine, known, "write", {"read": READ_OPTIONS, "stream": RATE_OPTIONS})
    tried = values.tried
    topic, transactional_id = values.get("topic") or viewed, values.get("transactional.id")
    if topic is not None:
        tried(lambda: check_topic(topic))
    timeout_ms = tried(lambda: values.positive("transaction.timeout.ms"))
    if transactional_id is not None:
        tried(lambda: check_transactional_id(transactional_id))
    elif timeout_ms is not None and not streaming:
        tried(_refuse_timeout)
    outside = tried(lambda: values.boolean("outsideTransaction")) or False
    if outside and (streaming or staging is not None or transactional_id is not None):
        tried(lambda: _refuse_outside(transactional_id))
    parsed = WriteOptions(
        address=tried(lambda: parse_address(values)),
        topic=topic,
        include_headers=tried(lambda: values.boolean("includeHeaders")),
        partitioner=tried(
            lambda: check_partitioner(values.get("partitioner") or DEFAULT_PARTITIONER)
        ),
        codec=tried(lambda: _parse_codec(values)),
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        staging=staging,
        origin=options.get(ORIGIN) if staging is not None else None,
        filler=options.get(FILLER) if staging is not None else None,
        outside_transaction=outside,
        passed_over=tuple(values.passed_over),
    )
    values.raise_errors()
    return parsed


def _parse_codec(values: OptionValues) -> WriterCodec | None:
    return WriterCodec.parse(values.get("compression.type"), values.integer("compression.level"))


def _refuse_timeout() -> None:
    raise InvalidOption("option transaction.timeout.ms has no effect without transactional.id")


def _refuse_outside(transactional_id: str | None) -> None:
    what = (
        f"it has transactional.id {transactional_id!r}"
        if transactional_id
        else "a batch of a stream, or a write of transaction(...)"
    )
    raise InvalidOption(
        "option outsideTransaction is for a write that is not part of a transaction; this one "
        f"is: {what}"
    )


def _split_view_options(options: Mapping[str, str]) -> tuple[Mapping[str, str], str | None]:
    """The options of a write, and the topic of the SQL view that is written to, if any.

    ``INSERT INTO`` a temporary view arrives with the options that the view reads with.
    """
    by_name = {name.lower(): value for name, value in options.items()}
    if "subscribe" not in by_name:
        return options, None
    for_reads = {name.lower() for name in READ_OPTIONS} - {name.lower() for name in WRITE_OPTIONS}
    for_reads |= {PINNED_SNAPSHOT, PINNED_SPANS, *(name.lower() for name in RATE_OPTIONS)}
    for_reads |= {f"kafka.{name}" for name in for_reads & {*KAFKA_SPELLINGS}}
    topics = [topic.strip() for topic in by_name["subscribe"].split(",")]
    rest = {name: value for name, value in by_name.items() if name not in for_reads}
    return rest, topics[0] if len(topics) == 1 else None
