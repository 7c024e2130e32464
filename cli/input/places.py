"""Parses partitions and positions in them. Knows no store."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import typer

from txnlog.cli.input.durations import is_duration, parse_duration

if TYPE_CHECKING:
    from txnlog.names import TopicPartition

_TARGET = re.compile(r"([^:]+)(?::(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, or one partition of it."""

    topic: str
    partition: int | None


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset, as a number."""

    offset: int


@dataclass(frozen=True, slots=True)
class Time:
    """The first record at or after a time, in milliseconds since the epoch."""

    timestamp_ms: int


Place = Literal["earliest", "latest"] | Offset | Time


def parse_target(text: str) -> Target:
    """``orders`` or ``orders:3``. Raises BadParameter."""
    match = _TARGET.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is neither TOPIC nor TOPIC:PARTITION, such as orders or orders:0"
        )
    return Target(match[1], None if match[2] is None else int(match[2]))


def to_partitions(targets: Iterable[Target]) -> list[str | TopicPartition]:
    """Topics and partitions as the library takes them."""
    from txnlog.names import TopicPartition

    return [
        target.topic if target.partition is None else TopicPartition(target.topic, target.partition)
        for target in targets
    ]


def parse_place(text: str) -> Place:
    """``earliest``, ``latest``, ``42`` or a time: see :func:`parse_time`.

    Raises BadParameter.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit() and len(text) <= 19:
        return Offset(int(text))
    if text.startswith("@"):
        return parse_time(text)
    raise typer.BadParameter(
        f"{text!r} is not a place in a log: write earliest, latest, an offset such as 42, or a "
        "time such as @2024-05-01T12:00:00Z, @1700000000000 (ms) or @-1h (ago)"
    )


def parse_time(text: str) -> Time:
    """``@1700000000000``, ``@2024-05-01T12:00`` (UTC if it names no zone) or ``@-1h30m``: ago.

    Raises BadParameter.
    """
    typed = text.removeprefix("@")
    if re.fullmatch(r"-?\d{1,18}", typed, re.ASCII):
        return Time(int(typed))
    if typed.startswith("-") and is_duration(typed[1:]):
        return Time(time.time_ns() // 1_000_000 - parse_duration(typed[1:]))
    try:
        moment = datetime.fromisoformat(typed)
    except ValueError:
        raise typer.BadParameter(
            f"@{typed} is not a time: write ISO 8601 such as @2024-05-01T12:00:00Z, milliseconds "
            "since the epoch, or how long ago it was, such as @-1h"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Time(round(moment.timestamp() * 1000))
