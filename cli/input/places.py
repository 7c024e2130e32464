"""What users type: ``TOPIC[:PARTITION]``, places in a log, ``KEY=VALUE``. Knows no store."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import typer

HELP_NAMES: Final[dict[str, object]] = {"help_option_names": ["-h", "--help"]}

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


def parse_place(text: str) -> Place:
    """``earliest``, ``latest``, ``42``, ``@1700000000000`` or ``@2024-05-01T12:00`` (UTC).

    Raises BadParameter.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit() and len(text) <= 19:
        return Offset(int(text))
    if text.startswith("@"):
        return Time(_parse_time(text[1:]))
    raise typer.BadParameter(
        f"{text!r} is no place in a log: write earliest, latest, an offset such as 42, or a time "
        "such as @1700000000000 (ms) or @2024-05-01T12:00:00Z"
    )


def _parse_time(text: str) -> int:
    if re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"@{text} is no time: write milliseconds since the epoch or ISO 8601, such as "
            "@2024-05-01T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_config(settings: Sequence[str]) -> dict[str, str]:
    """Settings by key, from ``KEY=VALUE``. Raises BadParameter; the library checks keys."""
    parsed = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"setting {setting!r} is not of the form KEY=VALUE")
        if key in parsed:
            raise typer.BadParameter(f"setting {key} is given twice")
        parsed[key] = value
    return parsed
