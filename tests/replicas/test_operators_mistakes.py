"""What an operator gets wrong, and files that somebody has tampered with: errors of our own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

import txnlog
from tests.support.replication.replica_folders import (
    lose,
    make,
    make_written,
    reopened,
    values,
    write,
)
from tests.support.wrong_values import call_with_texts, call_wrongly
from txnlog.errors import (
    CorruptEntry,
    InvalidConfig,
    InvalidOption,
    NotAStore,
    NotEnoughReplicas,
    StoreExists,
    TxnlogError,
)
from txnlog.replication import (
    Follower,
    Replicas,
    Standby,
    open_replicas,
    openers,
    recover_controller,
    root_names,
)
from txnlog.replication.roots.members import put_mark
from txnlog.storage.adapters.memory import MemoryStorage
from txnlog.storage.counting import CountingStorage


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        (Replicas.add, {"url": "new", "rack": None, "dry_run": True}),
        (Replicas.alter, {"config": {"replica.lag.time.max.ms": 5000}, "dry_run": True}),
        (Replicas.describe, {"with_lag": True}),
        (Replicas.elect, {"root": None, "unclean": False, "dry_run": True}),
        (Replicas.forget, {"member": "b-0", "lost": False, "dry_run": True}),
        (Replicas.move_controller, {"url": "to", "storage_options": None, "dry_run": True}),
        (Replicas.reassign, {"topics": ["t"], "dry_run": True}),
        (Replicas.remove, {"root": "b", "force": False, "dry_run": True}),
        (Replicas.verify, {"with_contents": False, "repair": False}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_argument_is_an_error_of_our_own(
    method: Callable[..., object],
    arguments: Mapping[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    replicas = Replicas(make_written(tmp_path, "x"))

    def call(**given: object) -> None:
        found = method(replicas, **given)
        if isinstance(found, Iterator):
            list(found)

    call_wrongly(call, arguments)
    if "topics" in arguments:
        call_with_texts(lambda topics: method(replicas, topics=topics, dry_run=True))


def test_wrong_arguments_where_stores_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_written(tmp_path, "x")
    options: dict[str, Any] = {"storage_options": None}
    call_wrongly(txnlog.open, {"url": "a", "create": False, "config": None, **options})
    call_wrongly(open_replicas, {"urls": ["a"], "controller": None, "config": None, **options})
    recovered = {"root": "a", "controller": "control", "dry_run": True, **options}
    call_wrongly(recover_controller, {"lost": (), **recovered})
    call_with_texts(lambda lost: recover_controller(**{**recovered, "lost": lost}))


@pytest.mark.parametrize("kind", [Replicas, Standby, Follower])
def test_an_address_is_no_open_store(tmp_path: Path, kind: Callable[..., object]) -> None:
    more = {"url": str(tmp_path / "standby")} if kind is Follower else {}
    call_wrongly(kind, {"store": make_written(tmp_path, "x"), **more})
    for value in (str(tmp_path / "control"), tmp_path, None):
        with pytest.raises(InvalidOption, match=r"takes an open store.*txnlog\.open\(url\)"):
            kind(store=value, **more)


def test_a_root_that_is_taken_is_found_before_any_is_marked(tmp_path: Path) -> None:
    """So the others can be used for another store."""
    make(tmp_path)

    def create(first: str, second: str, controller: str) -> txnlog.Store:
        paths = [str(tmp_path / name) for name in (first, second, controller)]
        return open_replicas([paths[0], *paths[1:2]], controller=paths[2], create=True).store

    with pytest.raises(StoreExists, match="is a replica of another store"):
        create("c", "b", "control2")
    assert Replicas(create("c", "d", "control3")).describe().in_sync == ("r0-0", "r1-0")


def test_roots_that_cannot_be_taken_out_or_brought_in(tmp_path: Path) -> None:
    store = make(tmp_path)
    with pytest.raises(InvalidOption, match=r"^nobody is not one of r0, r1$"):
        Replicas(store).remove("nobody")
    Replicas(store).remove("r1")
    with pytest.raises(InvalidOption, match="r1 was taken out before: `txnlog replicas add`"):
        Replicas(store).remove("r1")
    with pytest.raises(InvalidOption, match="control is the controller, or was"):
        Replicas(store).add(str(tmp_path / "control"))
    with pytest.raises(InvalidOption, match="are nested"):
        Replicas(store).add(str(tmp_path / "control" / "below"))


@pytest.mark.parametrize(
    ("folder", "rack", "expected"),
    [
        ("full", "hall-2", NotAStore),
        ("others", "hall-2", StoreExists),
        ("b", "hall-2", InvalidOption),
        ("control/below", "hall-2", InvalidOption),
        ("new", "two\nlines", InvalidConfig),
        ("new", "", InvalidConfig),
    ],
    ids=["full", "of another store", "in sync", "nested", "no label", "empty label"],
)
def test_what_is_refused_leaves_no_rack_and_no_mark(
    tmp_path: Path, folder: str, rack: str, expected: type[TxnlogError]
) -> None:
    """The next new root has the same name."""
    store = make(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/foo").write_text("x")
    others = [str(tmp_path / name) for name in ("others", "others2")]
    open_replicas(others, controller=str(tmp_path / "control2"), create=True)
    before = Replicas(store).alter({})
    if expected is not InvalidConfig:
        with pytest.raises(expected):
            Replicas(store).add(str(tmp_path / folder), dry_run=True)
    with pytest.raises(expected):
        Replicas(store).add(str(tmp_path / folder), rack=rack)
    assert Replicas(store).alter({}) == before
    assert not (tmp_path / "new/replica.json").exists()
    Replicas(store).add(str(tmp_path / "newer"), rack="hall-3")
    found = [(one.key, one.value) for one in Replicas(store).alter({}) if "rack" in one.key]
    assert found == [("replica.rack.r2", "hall-3")]


def test_the_last_root_that_answers_is_not_taken_out(tmp_path: Path) -> None:
    """Whoever leads: else what it alone has would be for an unclean election to bring back."""
    store = make(tmp_path)
    lose(tmp_path / "a")
    roots = open_replicas(str(tmp_path / "control"))
    for root in ("r1", "r0"):
        if root == "r0":
            lose(tmp_path / "b")
        with pytest.raises(NotEnoughReplicas, match=f"{root} was not taken out: no other one"):
            roots.remove(root)
    assert Replicas(store).describe().in_sync == ("r0-0", "r1-0")


def test_a_lag_of_millennia(tmp_path: Path) -> None:
    """It can be set, as in Kafka, and taken back."""
    store = make_written(tmp_path, "1")
    Replicas(store).alter({"replica.lag.time.max.ms": "9" * 18})
    again = reopened(tmp_path)
    assert values(again) == ["1"]
    Replicas(again).alter({"replica.lag.time.max.ms": None})


@pytest.mark.parametrize("path", ["a/replica.json", f"control/{root_names.epoch_file(0)}"])
def test_nested_too_deep(tmp_path: Path, path: str) -> None:
    """With a checksum that is right."""
    make(tmp_path)
    file = tmp_path / path
    body = re.sub(rb'^{"format":1,"checksum":"[0-9a-f]{8}",', b"", file.read_bytes())
    nested = body.rstrip()[:-1] + b',"more":' + b"[" * 500_000 + b"]" * 500_000 + b"}\n"
    file.write_bytes(b'{"format":1,"checksum":"%08x",' % crc32c(nested) + nested)
    shutil.rmtree(tmp_path / "a/incarnation-00000" / root_names.MEMBER_MARKS)
    with pytest.raises(CorruptEntry, match="does not decode"):
        reopened(tmp_path, path.partition("/")[0])


def test_a_members_folder_is_not_opened_as_a_store(tmp_path: Path) -> None:
    """What was written there would be acknowledged, and gone. It can be looked at."""
    store = make_written(tmp_path, "1")
    folder = str(tmp_path / "b" / "incarnation-00000")
    for create in (False, True):
        with pytest.raises(
            NotAStore, match=rf"holds \(r1-0\).*open the store by {tmp_path}/control"
        ):
            txnlog.open(folder, create=create)
    found = txnlog.open(folder, salvage=True)
    assert values(found) == ["1"]
    with pytest.raises(TxnlogError, match="opened with salvage=True"):
        found.topics.create("u")
    with pytest.raises(TxnlogError, match="opened with salvage=True"):
        write(found, "2")
    assert values(store) == ["1"]


def test_a_copy_of_a_members_folder_is_no_store_either(tmp_path: Path) -> None:
    """Whatever it is called."""
    make_written(tmp_path, "1")
    copied = shutil.copytree(tmp_path / "b" / "incarnation-00000", tmp_path / "restored")
    with pytest.raises(NotAStore, match=r"holds \(r1-0\)"):
        txnlog.open(str(copied))


def test_servers_are_asked_whether_a_folder_is_a_members_by_its_name() -> None:
    """So that no other store costs a request more when it is opened."""
    counted = {}
    for last in ("incarnation-00000", "store"):
        storage = MemoryStorage(f"members-of-servers/{last}")
        put_mark(storage, "r1-0", "memory://control", "made")
        counted[last] = CountingStorage(storage)
    with pytest.raises(NotAStore, match=r"holds \(r1-0\).*open the store by memory://control"):
        openers.check(counted["incarnation-00000"])
    openers.check(counted["store"])
    assert counted["store"].take() == {}


@pytest.mark.parametrize("which", ["control", "a", "b"])
@pytest.mark.parametrize("folder", ["a", "b/x", "b/incarnation-00000/topics", "control/epochs"])
def test_copies_lie_beside_the_roots(tmp_path: Path, folder: str, which: str) -> None:
    """And the controller: exports and standbys, by whichever of them the store was opened."""
    make_written(tmp_path, "x")
    store = reopened(tmp_path, which)
    with pytest.raises(InvalidOption, match="lies in the store"):
        store.kafka.export_topic("t", str(tmp_path / folder))
    with pytest.raises(InvalidOption, match="are nested"):
        Follower(store, str(tmp_path / folder))


@pytest.mark.parametrize("folder", ["a/incarnation-00000/x", "b/incarnation-00000/topics/x"])
@pytest.mark.parametrize(
    "put_there",
    [
        lambda _, at: txnlog.open(at),
        lambda _, at: txnlog.open(at, create=True),
        lambda own, at: open_replicas([f"{own}/r", f"{own}/s"], controller=at, create=True),
        lambda own, at: open_replicas([f"{own}/r", at], controller=f"{own}/c", create=True),
        lambda own, at: Replicas(make(own)).add(at),
        lambda own, at: Replicas(make(own)).move_controller(at),
        lambda own, at: Follower(make(own), at),
        lambda own, at: make_written(own, "x").kafka.export_topic("t", at),
    ],
    ids=["open", "create", "controller", "root", "add", "move", "follow", "export"],
)
def test_nothing_else_is_put_into_an_incarnation(
    tmp_path: Path, folder: str, put_there: Callable[[Path, str], object]
) -> None:
    """Of another store: it would be copied with it, and deleted."""
    other, own = tmp_path / "other", tmp_path / "own"
    make_written(other, "x")
    before = sorted(other.rglob("*"))
    with pytest.raises(NotAStore, match="is what one root of a replicated store holds"):
        put_there(own, str(other / folder))
    assert sorted(other.rglob("*")) == before
    txnlog.open(str(own / "incarnation-00000" / "x"), create=True)
