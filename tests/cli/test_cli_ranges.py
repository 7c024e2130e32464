"""``--offset RANGE``: its grammar."""

from __future__ import annotations

import time

import pytest
import typer

from txnlog.cli.input.places import (
    FromEnd,
    FromStart,
    Offset,
    Range,
    Time,
    parse_place,
    parse_range,
)

NOON_MS = 1_714_564_800_000  # 2024-05-01T12:00:00Z


def test_the_grammar_of_ranges() -> None:
    """Each form of kcat and rpk, with ISO times that have colons of their own."""
    noon, one = Time(NOON_MS), Time(NOON_MS + 3_600_000)
    for text, expected in {
        "start": Range("earliest", "latest"),
        "oldest": Range("earliest", "latest"),
        "end": Range("latest", "latest"),
        ":end": Range("earliest", "latest"),
        "42": Range(Offset(42), "latest"),
        "42:": Range(Offset(42), "latest"),
        ":42": Range("earliest", Offset(42)),
        "42:50": Range(Offset(42), Offset(50)),
        "+3": Range(FromStart(3), "latest"),
        "-3": Range(FromEnd(3), "latest"),
        "-10:-5": Range(FromEnd(10), FromEnd(5)),
        "5:@2024-05-01T12:00": Range(Offset(5), noon),
        f"@{NOON_MS}": Range(noon, "latest"),
        "@2024-05-01T12:00": Range(noon, "latest"),
        "@2024-05-01T12:00:00Z:": Range(noon, "latest"),
        "@:2024-05-01T12:00:00Z": Range("earliest", noon),
        "@2024-05-01T14:00:00+02:00:2024-05-01T13:00:00Z": Range(noon, one),
        f"@{NOON_MS}:@{NOON_MS + 3_600_000}": Range(noon, one),
        "@2024-05-01T12:00:end": Range(noon, "latest"),
    }.items():
        assert parse_range(text) == expected, text
    for text in ("", ":", "soon", "1:2:3", "@", "@soon", "@:", "--3", "1.5", "@1:x"):
        with pytest.raises(typer.BadParameter):
            parse_range(text)
    ago = parse_range("@-1h30m:-30m")
    assert isinstance(ago.start, Time)
    assert isinstance(ago.stop, Time)
    assert ago.stop.timestamp_ms - ago.start.timestamp_ms == pytest.approx(3_600_000, abs=1000)


def test_times_are_relative_wherever_a_place_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In --from, --to, --at, --before as in ranges: so long before now, by this clock."""
    monkeypatch.setattr(time, "time_ns", lambda: (NOON_MS + 86_400_000) * 1_000_000)
    assert parse_place("@-1d") == Time(NOON_MS)
    assert parse_place("@-23h60m") == Time(NOON_MS)
    assert parse_place("@-1500ms") == Time(NOON_MS + 86_398_500)
    assert parse_place("@-1") == Time(-1)
    assert parse_place("@2024-05-01T12:00") == Time(NOON_MS)
    for text in ("@-", "@-1x", "@1h", "@--1h", "-1h", "@- 1h"):
        with pytest.raises(typer.BadParameter):
            parse_place(text)
