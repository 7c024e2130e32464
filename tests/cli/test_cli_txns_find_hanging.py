"""``txnlog txns find-hanging``."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import txnlog
from tests.cli.left_open import HOUR_MS, leave_open
from tests.support.cli.cli_command import cli


def test_hanging_transactions_are_exit_4(own_store: Path) -> None:
    """The most overdue first; looking ends nothing; a reader does; damage is exit 3 instead."""
    find = ("txns", "find-hanging", "--store", own_store, "-o", "json")
    assert cli(*find).json() == []
    leave_open(own_store, "late", 2)
    leave_open(own_store, "later", 3)
    for _ in range(2):
        done = cli(*find)
        found = json.loads(done.out)
        assert (done.code, done.err) == (4, "")
        assert [hung["transactional_id"] for hung in found] == ["later", "late"]
        assert 3 * HOUR_MS > found[0]["overdue_ms"] - HOUR_MS * 3 + 60_000 >= 0
        assert (found[0]["state"], found[0]["topics"]) == ("Ongoing", ["empty"])
    entry = own_store / "transactions" / "etl-1"
    newest = max(entry.glob("*.json"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-9])
    damaged = cli(*find)
    assert (damaged.code, newest.name in damaged.err) == (3, True)
    assert len(json.loads(damaged.out)) == 2
    newest.write_bytes(whole)
    assert cli("records", "read", "empty", "--store", own_store).code == 0
    assert cli(*find).json() == []


def test_clocks_ahead_and_damaged_ids_are_named(own_store: Path) -> None:
    """A start in the future is told with why; a damaged id by its name, with the way out."""
    find = ("txns", "find-hanging", "--store", own_store, "-o", "json")
    leave_open(own_store, "early bird", -30 * 24)
    done = cli(*find)
    (found,) = json.loads(done.out)
    assert (done.code, done.err) == (4, "")
    assert (found["transactional_id"], found["overdue_ms"]) == ("early bird", 0)
    assert "in the future by 2591" in found["reason"]
    leave_open(own_store, "late", 2)
    later = json.loads(cli(*find).out)
    assert [hung["transactional_id"] for hung in later] == ["late", "early bird"]
    assert later[0]["reason"].startswith("open past its timeout: ")
    newest = max((own_store / "transactions" / "early%20bird").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-9])
    damaged = cli(*find)
    assert (damaged.code, len(json.loads(damaged.out))) == (3, 1)
    assert "transactional id 'early bird' may hang" in damaged.err
    assert "txnlog txns abort --force 'early bird'" in damaged.err


def test_the_advice_is_a_command_that_ends_it(own_store: Path) -> None:
    """Run as doctor says it, whatever characters the id has."""
    leave_open(own_store, "it's; late", 2)
    found = json.loads(cli("doctor", "--no-probe", "--store", own_store, "-o", "json").out)
    (hanging,) = [one for one in found if one["state"] == "hanging"]
    (command,) = re.findall(r"`txnlog (txns [^`]*)` ends it at once", hanging["detail"])
    assert cli(*shlex.split(command), "--yes", "--store", own_store).code == 0
    ended = txnlog.open(str(own_store)).transactions.describe("it's; late")
    assert ended.status == "CompleteAbort"
    assert cli("txns", "find-hanging", "--store", own_store, "-o", "json").json() == []
