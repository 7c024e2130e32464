"""The shipped suite: it passes what keeps its promises, and fails each that breaks one."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from txnlog.errors import StorageError, TxnlogError
from txnlog.storage.base import CannotReplace, Storage, Upload
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import HeapStorage
from txnlog.testing.conformance import __main__ as command
from txnlog.testing.conformance import races, suite
from txnlog.testing.conformance.expectations import NotConforming
from txnlog.testing.conformance.fault_proxy import ProxyFaults
from txnlog.testing.conformance.interface import CHECKS
from txnlog.testing.conformance.lost_responses import (
    create_over_cut_connections,
    through_proxy,
)
from txnlog.testing.conformance.suite import Suite, verdict
from txnlog.testing.conformance.ways import Way

_COUNTER = itertools.count()


def failing(kind: Callable[[Storage], Storage]) -> set[str]:
    """The checks of the interface that a storage fails."""
    failed = set()
    for check in CHECKS:
        try:
            check(kind(HeapStorage()))
        except (NotConforming, TxnlogError):
            failed.add(check.__name__)
    return failed


class Overwrites(ForwardingStorage):
    """Ignores the condition."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.inner.delete([name])
        self.inner.put(name, data)
        return True


class DecidesAnew(ForwardingStorage):
    """Takes it that nobody has put what is decided."""

    def put_decided(self, name: str, data: bytes) -> bool:
        self.inner.put_if_absent(name, data)
        return True


class ListsLate(ForwardingStorage):
    """The newest name is missing."""

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return super().list_names(folder, start_after)[:-1]


class ListsOnePage(ForwardingStorage):
    """A listing ends where the first page does."""

    def list_names(self, folder: str, start_after: str = "") -> list[str]:
        return super().list_names(folder, start_after)[:1000]


class ReadsTooFar(ForwardingStorage):
    """The end of a range is taken to be part of it, as in HTTP."""

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        return super().get_range(name, start, stop + 1)


class ShowsParts(ForwardingStorage):
    """An upload shows as it grows."""

    def upload(self, name: str) -> Upload:
        self.inner.put(name, b"")
        return super().upload(name)


class ForgetsTheSlash(ForwardingStorage):
    """The names of neighbours that begin alike are listed too."""

    def list_folders(self, folder: str) -> list[str]:
        return [name for name in super().list_folders("") if name.startswith(folder)]


class Plus(ForwardingStorage):
    """Takes a plus for a blank, as forms of the web do."""

    def put(self, name: str, data: bytes) -> None:
        super().put(name.replace("+", " "), data)


class KeepsTheDamage(ForwardingStorage):
    """Says that an object was replaced, and only creates what is not there."""

    def replace(self, name: str, data: bytes) -> None:
        self.inner.put_if_absent(name, data)


class ReplacesAndRefuses(ForwardingStorage):
    """Says that nothing was changed after it was."""

    def replace(self, name: str, data: bytes) -> None:
        super().replace(name, data)
        raise CannotReplace("too late")


class LeavesWhatWasReplaced(ForwardingStorage):
    """Keeps a backup beside it."""

    def replace(self, name: str, data: bytes) -> None:
        self.inner.put_if_absent(f"{name}~", self.inner.get(name))
        super().replace(name, data)


@pytest.mark.parametrize(
    ("kind", "seen_by"),
    [
        (Overwrites, "a_name_is_created_once"),
        (DecidesAnew, "what_all_put_alike_is_there_once"),
        (KeepsTheDamage, "a_damaged_object_is_replaced_or_stays"),
        (ReplacesAndRefuses, "a_damaged_object_is_replaced_or_stays"),
        (LeavesWhatWasReplaced, "a_damaged_object_is_replaced_or_stays"),
        (ListsLate, "listings_are_fresh"),
        (ListsOnePage, "long_listings_are_complete"),
        (ReadsTooFar, "ranged_reads_are_exact"),
        (ShowsParts, "an_upload_ends_once"),
        (ForgetsTheSlash, "listings_start_after_a_name_and_stay_in_their_folder"),
        (Plus, "names_are_kept_as_they_are"),
    ],
)
def test_a_broken_promise_is_seen(kind: Callable[[Storage], Storage], seen_by: str) -> None:
    """Each by the check that is for it, and an honest storage by none."""
    assert seen_by in failing(kind)


def test_an_honest_storage_fails_nothing() -> None:
    assert failing(ForwardingStorage) == set()


# -- the race ------------------------------------------------------------------------------------


def raced(*won: bool, found: str | None = None, listed: bool | None = None) -> list[Any]:
    """What the racers of a round were told; what each of the losers found."""
    return [
        races._Raced(was, 0.01, *((found, listed) if not was and found else (None, None)))
        for was in won
    ]


@pytest.mark.parametrize(
    ("results", "owner", "holds"),
    [
        (raced(False, True, found="1", listed=True), "1", True),
        (raced(False, False), "1", True),  # a response was lost
        (raced(True, True), "1", False),
        (raced(True, False), "1", False),
        (raced(True, False), "nothing", False),
        (raced(False, False), "12 bytes that nobody wrote", False),
        (raced(True, False, found="nothing", listed=True), "0", False),
        (raced(True, False, found="0", listed=False), "0", False),
    ],
)
def test_a_round_is_judged(results: list[Any], owner: str, holds: bool) -> None:
    """One winner or an unknown one, its whole object, seen by whoever was refused."""
    figures = races._count([results], [owner])
    if holds:
        figures.judge()
        return
    with pytest.raises(NotConforming, match="of 1 rounds of 16"):
        figures.judge()


@pytest.mark.more
def test_processes_race_on_a_disk(tmp_path: Path) -> None:
    """Four processes; on a local disk each name has one winner."""
    (result,) = Suite(str(tmp_path), rounds=20).run(lambda name: "processes" in name)
    assert result.state == "passed", result
    assert isinstance(result.figures, races.RaceFigures)
    assert (result.figures.rounds, result.figures.exclusive) == (20, 20)
    assert result.figures.looks > 20


# -- connections that are cut --------------------------------------------------------------------


@pytest.fixture
def lossy(s3_options: dict[str, Any]) -> Iterator[Callable[[ProxyFaults], tuple[Storage, Storage]]]:
    """An S3 storage as it is, and by a way on which connections are cut."""
    from contextlib import ExitStack

    from txnlog.storage.adapters.s3 import S3Storage

    with ExitStack() as stack:

        def open_both(faults: ProxyFaults) -> tuple[Storage, Storage]:
            path = f"test/lossy-{next(_COUNTER)}"
            way = Way(f"s3://{path}", s3_options)
            found = stack.enter_context(through_proxy(way, faults, seed=3))
            assert found is not None
            # Repeated once by s3fs and not by botocore beneath it, which pauses.
            given = {**found[0].options, "config_kwargs": {"retries": {"total_max_attempts": 1}}}
            return S3Storage(path, s3_options), S3Storage(path, given)

        yield open_both


@pytest.mark.s3
def test_creates_over_cut_connections_are_found_out(lossy: Any) -> None:
    """Before and after the request took effect, and in the middle of the answer."""
    plain, disturbed = lossy(ProxyFaults(refuse=0.1, lose=0.2, truncate=0.1))
    assert create_over_cut_connections(plain, disturbed, 6)[0] == 6


class TakesRefusalForTruth(ForwardingStorage):
    """Repeats a create that has failed, and believes the refusal of its own object."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        try:
            return super().put_if_absent(name, data)
        except StorageError:
            return False

    def get(self, name: str) -> bytes:
        return super().get(name)[:-1]


def test_a_client_that_believes_the_refusal_of_its_own_object_is_seen() -> None:
    """Its creates look like somebody else's."""

    class Loses(ForwardingStorage):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            super().put_if_absent(name, data)
            raise StorageError("the response was lost")

    inner = HeapStorage()
    with pytest.raises(NotConforming, match="taken for somebody else's"):
        create_over_cut_connections(inner, TakesRefusalForTruth(Loses(inner)), 1)


_AZURE = "DefaultEndpointsProtocol=http;AccountName=a;BlobEndpoint={}://{}/a;AccountKey=k;"


@pytest.mark.parametrize(
    ("way", "server", "led"),
    [
        (
            Way("s3://b/x", {"endpoint_url": "http://me:7070/s3", "key": "k"}),
            ("me", 7070),
            Way("s3://b/x", {"endpoint_url": "http://p:9/s3", "key": "k"}),
        ),
        (
            Way("gs://b/x", {"endpoint_url": "http://me"}),
            ("me", 80),
            Way("gs://b/x", {"endpoint_url": "http://p:9"}),
        ),
        (
            Way("az://c/x", {"connection_string": _AZURE.format("http", "me:10000")}),
            ("me", 10000),
            Way("az://c/x", {"connection_string": _AZURE.format("http", "p:9")}),
        ),
        (
            Way("webhdfs://me:9870/x", {"user": "u"}),
            ("me", 9870),
            Way("webhdfs://p:9/x", {"user": "u"}),
        ),
        (Way("hdfs://[::1]:8020/x"), ("::1", 8020), Way("hdfs://p:9/x")),
        (Way("s3://b/x", {"endpoint_url": "https://me:7070"}), None, None),
        (Way("swebhdfs://me:9871/x"), None, None),
        (Way("hdfs://nameservice/x"), None, None),
        (Way("sftp://me:22/x"), None, None),
    ],
)
def test_a_proxy_stands_in_for_the_server(
    way: Way, server: tuple[str, int] | None, led: Way | None
) -> None:
    """Where the server is named, by an option or the URL, and is not encrypted."""
    assert way.server() == server
    if led is not None:
        assert way.through("p", 9) == led
        assert way.by("http://p:9") == led


@pytest.mark.parametrize(
    ("way", "proxy", "expected"),
    [
        (
            Way("s3://b/x", {"endpoint_url": "https://me"}),
            "http://p:9",
            Way("s3://b/x", {"endpoint_url": "http://p:9"}),
        ),
        (Way("sftp://me/x", {"port": 22}), "sftp://p/x", Way("sftp://p/x", {"port": 22})),
        (Way("swebhdfs://me:1/x"), "swebhdfs://p:9/x", Way("swebhdfs://p:9/x")),
    ],
)
def test_a_proxy_may_be_told(way: Way, proxy: str, expected: Way) -> None:
    """It may speak TLS to the server itself; or it is another URL of the folder."""
    assert way.by(proxy) == expected


@pytest.mark.parametrize(
    ("url", "proxy", "told"),
    [
        ("s3://bucket/x", "s3://bucket/y", "leads to the same server"),
        ("sftp://me/x", "http://p:9", "nothing tells how to reach sftp://me/x through a proxy"),
        ("s3://bucket/x", "http://p:9", "nothing tells how to reach"),
        ("s3://bucket/x", "p:9", "is not a way to s3://bucket/x"),
        ("webhdfs://me:1/x", "http://p", "is not a way to webhdfs://me:1/x"),
    ],
)
def test_a_proxy_that_leads_nowhere_is_refused(
    url: str, proxy: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any check is made: it would pass over connections that nobody cuts."""
    assert command.main([url, "--proxy", proxy]) == 2
    assert told in capsys.readouterr().err


# -- the command ---------------------------------------------------------------------------------


def test_the_command_says_that_a_storage_conforms(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each check, what could not be made and why, and a verdict."""
    status = command.main([f"memory://suite-{next(_COUNTER)}", "--only", "one_winner"])
    out = capsys.readouterr().out.splitlines()
    assert status == 0
    assert out[0].startswith("ok      threads that race have one winner")
    assert out[1].startswith("skipped processes that race have one winner")
    assert out[1].endswith("it is in this process alone")
    assert out[2].endswith("conforms: 1 checks passed; 1 could not be made")


def test_the_command_says_that_a_storage_does_not_conform(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is 1, and what was wrong is told."""

    def open_liar(*_: object) -> Storage:
        return Overwrites(HeapStorage())

    monkeypatch.setattr(suite, "open_storage", open_liar)
    assert command.main(["s3://lies/here", "--only", "a_name_is"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  a name is created once" in out
    assert "NotConforming: a name was created twice" in out
    assert "does NOT conform: 1 of 1 checks failed" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nosuch://x"], "no atomic put-if-absent"),
        (["s3://bucket/x", "--option", "anon=perhaps"], "anon must be true or false"),
    ],
)
def test_what_cannot_be_opened_is_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    assert told in capsys.readouterr().err


def test_nothing_was_checked_is_no_success() -> None:
    """A mistyped name does not end with a success."""
    assert not verdict([])[0]


def test_each_check_leaves_its_folder_empty(tmp_path: Path) -> None:
    """Whatever was made is deleted."""
    chosen = {"bytes_of_any_kind_are_kept", "listings_are_fresh"}
    results = list(Suite(str(tmp_path)).run(chosen.__contains__))
    assert [result.state for result in results] == ["passed", "passed"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.more
def test_the_command_runs_as_a_module(tmp_path: Path) -> None:
    """``python -m txnlog.testing.conformance``, with all checks, on a disk."""
    words = [sys.executable, "-m", "txnlog.testing.conformance", str(tmp_path), "--rounds", "8"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "conforms: 27 checks passed; 1 could not be made" in done.stdout
    assert "8 of 8 rounds of 16 had one winner" in done.stdout
