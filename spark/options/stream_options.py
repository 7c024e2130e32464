"""The options of a streaming read: those of a batch that apply here, and the rates."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from txnlog.errors import InvalidOption
from txnlog.spark.options.option_names import (
    AT_TIMESTAMP,
    AT_TOKEN,
    RATE_OPTIONS,
    READ_OPTIONS,
    SINCE_TIMESTAMP,
    SINCE_TOKEN,
    WRITE_OPTIONS,
)
from txnlog.spark.options.option_values import OptionValues
from txnlog.spark.options.positions import GROUP, Position
from txnlog.spark.options.read_options import SNAPSHOT, ReadOptions, parse_range

_logger = logging.getLogger(__name__)

_BATCH_ONLY = (
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "transactional.id",
    "transaction.timeout.ms",
    "maxRecords",
    AT_TIMESTAMP,
    AT_TOKEN,
    SINCE_TIMESTAMP,
    SINCE_TOKEN,
)
_STREAM_OPTIONS = (*(name for name in READ_OPTIONS if name not in _BATCH_ONLY), *RATE_OPTIONS)

_DURATION = re.compile(r"(\d{1,9})\s*(ms|s|m|min|h|d)?", re.IGNORECASE | re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DEFAULT_DELAY_MS = 15 * 60_000


@dataclass(frozen=True, slots=True)
class MicroBatchLimits:
    """The size of a micro-batch, in offsets: at least, at most, and how long it waits.

    A smaller batch goes ahead once ``max_delay_ms`` have passed since the last one.
    """

    least: int | None = None
    most: int | None = None
    max_delay_ms: int = _DEFAULT_DELAY_MS


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """A streaming read's options; ``starting`` is where a new query begins."""

    read: ReadOptions
    starting: Position
    rates: MicroBatchLimits


def warn_of_rates(options: Mapping[str, str]) -> None:
    """Warn that they do not apply to a batch, as Spark's Kafka source does."""
    given = {name.lower() for name in options}
    if names := [name for name in RATE_OPTIONS if name.lower() in given]:
        _logger.warning(
            "%s: only for streams, without effect in a batch read; there maxRecords is the limit",
            ", ".join(names),
        )


def check_rates(options: Mapping[str, str]) -> None:
    """Raise InvalidOption if an option that only streams use is malformed, in a batch read too.

    When a source checks its options it is not told whether it is loaded for a stream.
    """
    names = {name.lower() for name in RATE_OPTIONS}
    given = {name: value for name, value in options.items() if name.lower() in names}
    _parse_rates(OptionValues(given, RATE_OPTIONS, "stream", {}))


def parse_stream(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a stream.

    Raises InvalidOption: all that is wrong with them; TxnlogError: one name of a topic or a group,
    if nothing else is wrong.
    """
    others = {"batch read": READ_OPTIONS, "write": WRITE_OPTIONS}
    values = OptionValues(options, _STREAM_OPTIONS, "stream", others)
    rates = values.tried(lambda: _parse_rates(values))
    values.tried(lambda: _check_start(values))
    read = parse_range(values, {})
    if read.isolation_level == SNAPSHOT and read.group_id is None:
        values.tried(_refuse_snapshot)
    values.raise_errors()
    return StreamOptions(read, read.starting or "latest", rates)


def _check_start(values: OptionValues) -> None:
    if (values.get("startingOffsets") or "").strip().lower() == GROUP:
        raise InvalidOption(
            "option startingOffsets=group is for a batch read: a stream goes on from its "
            "checkpoint, and a new one starts at earliest, latest or offsets"
        )


def _refuse_snapshot() -> None:
    raise InvalidOption(
        "option isolation.level=snapshot is for a batch read: a stream goes on by offsets, "
        "which cannot tell what was read behind an open transaction; leave it at "
        "read_committed"
    )


def _parse_rates(values: OptionValues) -> MicroBatchLimits:
    least = values.positive("minOffsetsPerTrigger")
    most = values.positive("maxOffsetsPerTrigger")
    delay = values.get("maxTriggerDelay")
    if least is not None and most is not None and least > most:
        raise InvalidOption(
            f"option minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is "
            f"{most}"
        )
    if delay is None:
        return MicroBatchLimits(least, most)
    if least is None:
        raise InvalidOption("option maxTriggerDelay has no effect without minOffsetsPerTrigger")
    found = _DURATION.fullmatch(delay.strip())
    if not found:
        raise InvalidOption(
            f"option maxTriggerDelay must be a time such as 90s, 15m or 1h, not {delay!r:.100}"
        )
    return MicroBatchLimits(least, most, int(found[1]) * _UNIT_MS[(found[2] or "ms").lower()])
