"""``--watch``: what a verb shows, again and again."""

from __future__ import annotations

import re
import sys
import time

import pytest

from tests.support.cli.cli_command import FIRST_MS
from txnlog.cli.output.fields import Field, number
from txnlog.cli.output.json_output import JsonLinesOutput
from txnlog.cli.output.streams import warn
from txnlog.cli.output.tables import TableOutput
from txnlog.cli.output.watch import watch_rows
from txnlog.errors import StorageError

FIELDS: list[Field[int]] = [number("n", "N", int)]


def test_a_storage_that_fails_is_tried_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, what comes later is shown; one that fails for a minute ends it."""
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    rounds: list[list[int] | None] = [[1], None, None, [2], *[None] * 80]

    def find() -> list[int]:
        found = rounds.pop(0)
        if found is None:
            raise StorageError("gone")
        return found

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    with pytest.raises(StorageError, match="gone"):
        watch_rows(JsonLinesOutput(), FIELDS, find, 1.0, sleep)
    shown = capsys.readouterr()
    assert shown.out == '{"n": 1}\n{"n": 2}\n'
    assert shown.err == "txnlog: gone; trying again\n" * 2
    assert now_s == 4 + 61


def test_a_terminal_is_cleared_and_told_the_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found is there at once: nothing is cleared while it is looked for."""

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    output = TableOutput()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("time.time_ns", lambda: FIRST_MS * 1_000_000)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyboardInterrupt):
        watch_rows(output, FIELDS, lambda: [7], 2.0, stop)
    header = "2023-11-14T22:13:20.000Z, every 2 s, Ctrl-C ends it\n\n"
    assert capsys.readouterr().out == f"\x1b[H\x1b[2J{header}N\n7\n"


def test_what_is_said_while_looking_is_not_cleared_away(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes behind the clearing, each time; an empty list does not say that there is none."""
    rounds = 0

    def stop(_: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            raise KeyboardInterrupt

    def find() -> list[int]:
        if rounds < 2:
            warn("a group is damaged")
        return []

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    monkeypatch.setattr("time.time_ns", lambda: FIRST_MS * 1_000_000)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyboardInterrupt):
        watch_rows(TableOutput(), FIELDS, find, 2.0, stop)
    found = re.sub(r"\x1b\[\d*m|─\n", "", capfd.readouterr().out)
    damaged, again, sound = found.split("\x1b[H\x1b[2J")[1:]
    told = "2023-11-14T22:13:20.000Z, every 2 s, Ctrl-C ends it\n\n"
    assert damaged == again == f"{told}txnlog: a group is damaged\nN\n"
    assert sound == f"{told}N\nnone\n"
