"""``txnlog doctor``: what it says, what it leaves alone, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import txnlog
from tests.support.cli.cli_command import cli, environment, list_files
from txnlog.clock import SystemClock
from txnlog.store import open_store
from txnlog.testing import VirtualClock

QUIET = ("--no-probe", "-o", "json")


def test_a_healthy_store_is_all_ok_and_untouched(own_store: Path, empty_store: Path) -> None:
    """Each thing that was looked at is named; the probe leaves nothing behind; exit 0."""
    before = list_files(own_store)
    found = cli("doctor", "--store", own_store, "--deep", "-o", "json").json()
    assert {finding["state"] for finding in found} == {"ok"}
    assert [(finding["check"], finding["subject"]) for finding in found] == [
        ("probe", ""),
        ("transactions", ""),
        ("topic", "empty"),
        ("data", "empty"),
        ("topic", "orders"),
        ("data", "orders"),
        ("topic", "paid"),
        ("data", "paid"),
        ("group", "etl"),
        ("files", ""),
    ]
    assert list_files(own_store) == before
    assert "probe" not in cli("doctor", "--no-probe", "--store", own_store).out
    assert len(cli("doctor", "--store", empty_store, *QUIET).json()) == 2
    one = cli("doctor", "paid", "--store", own_store, *QUIET).json()
    assert [finding["check"] for finding in one] == ["transactions", "topic", "data"]
    assert cli("doctor", "nope", "--store", own_store, *QUIET).code == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_without_the_probe_no_right_to_write_is_needed(own_store: Path) -> None:
    """A store that is mounted read-only can be looked over."""
    for folder in [own_store, *(path for path in own_store.rglob("*") if path.is_dir())]:
        folder.chmod(0o500)
    assert cli("doctor", "--store", own_store, *QUIET).code == 0
    assert cli("doctor", "--store", own_store).code == 1


def test_damage_is_exit_3_and_ends_nothing(own_store: Path) -> None:
    """A damaged entry, a lost segment, a flipped bit: all told, the rest is looked at as well."""
    log = own_store / "topics/paid/log"
    entry = log / "00000000000000000002.json"
    entry.write_bytes(entry.read_bytes()[:-9])
    first, second, _ = txnlog.open(str(own_store)).topics.segments("orders")
    (own_store / first.paths.log).unlink()
    path = own_store / second.paths.log
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    before = list_files(own_store)
    done = cli("doctor", "--store", own_store, *QUIET)
    found = json.loads(done.out)
    damages = [finding for finding in found if finding["state"] == "damage"]
    assert done.code == 3
    assert [(finding["subject"], finding["rule"], finding["path"]) for finding in damages] == [
        ("orders", None, first.paths.log),
        ("paid", "L1", "topics/paid/log/00000000000000000002.json"),
    ]
    assert "damage found: 2" in done.err
    assert ("group", "etl", "ok") in [(f["check"], f["subject"], f["state"]) for f in found]
    deep = cli("doctor", "orders", "--deep", "--store", own_store, *QUIET)
    assert second.paths.log in {f["path"] for f in json.loads(deep.out)}
    assert list_files(own_store) == before


def test_what_was_not_read_is_not_called_sound(tmp_path: Path) -> None:
    """Flipped bytes in a data file: without --deep it says that it has not looked, and how to."""
    store = txnlog.open(str(tmp_path), create=True)
    at = ("--store", store.url, "--no-probe")
    assert "--deep" not in cli("doctor", *at).err
    store.topics.create("t", config={"record.format": "parquet"})
    with store.producer() as producer:
        producer.send("t", b"x" * 1000)
    (segment,) = store.topics.segments("t")
    path = tmp_path / segment.paths.log
    data = bytearray(path.read_bytes())
    data[40:44] = bytes(byte ^ 255 for byte in data[40:44])
    path.write_bytes(data)
    plain = cli("doctor", *at)
    assert (plain.code, "segments: 1, files: 1, not read" in plain.out) == (0, True)
    assert plain.err == "txnlog: segments were listed, not read: --deep reads them, too\n"
    deep = cli("doctor", "--deep", *at)
    assert (deep.code, "not read" in deep.out + deep.err) == (3, False)
    assert segment.paths.log in deep.out
    assert cli("segments", "verify", "t", "--store", store.url).code == 3


NOT_ALLOWED = """
import sys
import txnlog.cli
from txnlog.storage.failure_messages import failure
from txnlog.storage.adapters.local import LocalStorage

get, refused = LocalStorage.get, sys.argv.pop(1)

def refusing(self, name):
    # chmod would not do: who runs the tests may be root.
    if name.endswith(refused):
        raise failure("reading", self.url, name, PermissionError(13, "Permission denied"))
    return get(self, name)

LocalStorage.get = refusing
txnlog.cli.main()
"""


def test_what_cannot_be_read_is_exit_1_and_damage_beside_it_3(own_store: Path) -> None:
    """Told with its path and why, and all else is looked at."""

    def run(refused: str) -> subprocess.CompletedProcess[str]:
        arguments = ["doctor", "--store", str(own_store), *QUIET]
        return subprocess.run(
            [sys.executable, "-c", NOT_ALLOWED, refused, *arguments],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    path = f"topics/orders/log/{1:020}.json"
    done = run(path)
    found = json.loads(done.stdout)
    (unread,) = [f for f in found if f["state"] != "ok"]
    assert (done.returncode, unread["state"], unread["check"]) == (1, "unreadable", "topic")
    assert (unread["subject"], unread["path"]) == ("orders", path)
    assert "permission is denied" in unread["detail"]
    assert "not readable, so not checked: 1" in done.stderr
    assert {"paid", "empty", "etl"} <= {f["subject"] for f in found if f["state"] == "ok"}
    damaged = own_store / "topics/paid/log" / f"{2:020}.json"
    damaged.write_bytes(b"{}")
    assert run(path).returncode == 3


def test_hanging_transactions_are_exit_4_and_stay(tmp_path: Path) -> None:
    """Past its timeout and nobody came: told, not ended. With damage beside it, it is exit 3."""
    txnlog.open(str(tmp_path / "s"), create=True).topics.create("t")
    an_hour_ago = VirtualClock(SystemClock().now_ms() - 3_600_000)
    store = open_store(str(tmp_path / "s"), clock=an_hour_ago)
    producer = store.producer(transactional_id="late", transaction_timeout_ms=1)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", "x")
    producer.flush()
    for _ in range(2):
        done = cli("doctor", "--store", tmp_path / "s", *QUIET)
        (found,) = [f for f in json.loads(done.out) if f["state"] != "ok"]
        assert (done.code, found["state"], found["subject"]) == (4, "hanging", "late")
    (segment,) = (tmp_path / "s/topics/t/data/0").glob("*.log")
    segment.unlink()
    assert cli("doctor", "--store", tmp_path / "s", *QUIET).code == 3


def test_orphans_are_no_failure_and_uploads_are_none(own_store: Path) -> None:
    """An unplaced upload is an orphan only when it is old; exit 0, and it stays."""
    stray = own_store / "topics/orders/data/1/w-0.log"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"x" * 100)
    temporary = own_store / f".tmp/{1:032x}"
    temporary.parent.mkdir(exist_ok=True)
    temporary.write_bytes(b"y")
    young = cli("doctor", "--store", own_store, *QUIET)
    assert (young.code, young.err) == (0, "")
    assert [f["path"] for f in json.loads(young.out) if f["state"] == "note"] == [
        "topics/orders/data/1/w-0.log",
        f".tmp/{1:032x}",
    ]
    two_days_ago = stray.stat().st_mtime - 2 * 86_400
    for path in (stray, temporary):
        os.utime(path, (two_days_ago, two_days_ago))
    for options, state in (((), "orphan"), (("--orphan-age", "3d"), "note")):
        done = cli("doctor", "--store", own_store, *QUIET, *options)
        assert done.code == 0
        assert {f["state"] for f in json.loads(done.out) if f["path"]} == {state}
    done = cli("doctor", "--no-probe", "--store", own_store)
    assert "orphans: 2, which take 101 bytes" in done.err
    assert stray.exists()
    assert cli("doctor", "--orphan-age", "soon", "--store", own_store).code == 2


def test_one_damage_stands_above_many_notes(own_store: Path) -> None:
    """A line for each kind with its count, the worst first; --all and JSON have each finding."""
    store = txnlog.open(str(own_store))
    for number in range(20):
        (own_store / f"topics/orders/data/0/w-{number:03}.log").write_bytes(b"x")
    (own_store / store.topics.segments("orders", 1)[0].paths.log).unlink()
    done = cli("doctor", "--store", own_store, "--no-probe")
    heading, worst, notes, *rest = done.out.splitlines()
    assert heading.split() == ["STATE", "CHECK", "COUNT", "SUBJECT", "DETAIL"]
    assert worst.split()[:4] == ["damage", "data", "1", "orders"]
    assert notes.split()[:4] == ["note", "data", "20", "orders"]
    assert "19 more" in notes
    assert {line.split()[0] for line in rest} == {"ok"}
    every = cli("doctor", "--store", own_store, "--no-probe", "--all")
    assert sum(line.startswith("note") for line in every.out.splitlines()) == 20
    assert (done.code, every.code) == (3, 3)


def test_what_a_rewrite_has_replaced_is_no_upload(tmp_path: Path) -> None:
    """It is said what it was, and what deletes it."""
    store = txnlog.open(str(tmp_path / "s"), create=True)
    store.topics.create("t")
    with store.producer() as producer:
        for number in range(20):
            producer.send("t", f"{number}")
            producer.flush()
    assert store.maintenance.merge("t")
    found = [f for f in store.examine(with_probe=False) if f.state != "ok"]
    assert found
    assert all("a rewrite has replaced it" in f.detail for f in found)
    assert not any("upload" in f.detail for f in found)
