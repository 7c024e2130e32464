"""Disks that are away for a moment, between any two requests: absence proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.replication.replica_folders import (
    lose,
    make,
    make_written,
    reopened,
    skip_probes,
)
from tests.support.replication.replica_world import Roots
from txnlog.errors import NotEnoughReplicas, ObjectNotFound, TxnlogError
from txnlog.replication.roots.epochs import Epoch, Member, Root
from txnlog.replication.roots.members import MarkGone, MemberOpener
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.roots.root_join import join
from txnlog.results import Metric
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.base import Storage
from txnlog.storage.forwarding import ForwardingStorage
from txnlog.testing import VirtualClock

REQUESTS: dict[str, Callable[[Storage], object]] = {
    "get": lambda disk: disk.get("f/x"),
    "get_range": lambda disk: disk.get_range("f/x", 0, 1),
    "size": lambda disk: disk.size("f/x"),
    "modified_ms": lambda disk: disk.modified_ms("f/x"),
    "confirm": lambda disk: disk.confirm("f/x"),
    "list_names": lambda disk: disk.list_names("f"),
    "list_folders": lambda disk: disk.list_folders(""),
    "list_all": lambda disk: [*disk.list_all("")],
    "delete": lambda disk: disk.delete(["f/x"]),
    "put": lambda disk: disk.put("f/y", b""),
}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """The first root's, with an object in it."""
    skip_probes(monkeypatch)
    storage = find_replicated(make(tmp_path).storage)
    assert storage is not None
    storage.put_if_absent("f/x", b"1")
    return MemberOpener().at(Root(str(tmp_path / "a")), "r0-0", storage.agreement.epoch().store)


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_request_itself_notices(
    disk: Storage, tmp_path: Path, request_: Callable[[Storage], object]
) -> None:
    bring_back = lose(tmp_path / "a")
    with pytest.raises(MarkGone):
        request_(disk)
    bring_back()
    request_(disk)


def test_a_listing_notices_what_happens_in_its_middle(disk: Storage, tmp_path: Path) -> None:
    """After the root's folder was read, and before the next one: it shows again at the end."""
    listed = disk.list_all("")
    next(listed)
    (tmp_path / "a").rename(tmp_path / "away")
    with pytest.raises(MarkGone):
        list(listed)


def test_what_is_not_found_while_a_root_copies_and_shows_later() -> None:
    """At a server, which nobody asks for its mark: the root is not in sync without it."""
    roots, blinks = Roots(2), [True]

    class Blinking(ForwardingStorage):
        def confirm(self, name: str) -> None:
            if name == "f/1" and blinks:
                blinks.pop()
                raise ObjectNotFound(name)

    def open_member(_: Epoch, member: Member) -> Storage:
        return Blinking(roots.heap(member))

    storage = ReplicatedStorage(roots.controller, open_member, clock=VirtualClock())
    for number in range(3):
        storage.put_if_absent(f"f/{number}", b"1")
    with pytest.raises(NotEnoughReplicas, match="1 objects that a-0 has were not found"):
        join(storage.agreement, "c", "heap://c")
    assert roots.epoch().in_sync == ("a-0", "b-0")
    done = join(storage.agreement, "c", "heap://c")
    assert roots.heap(done.member).list_names("f") == ["0", "1", "2"]


def put_away(folder: Path, *, is_file: bool = False) -> None:
    """Have a root's folder go away; with a file in its place each request fails."""
    folder.rename(folder.with_name(f"{folder.name}-away"))
    if is_file:
        folder.touch()


FOUND = {
    "get": b"1",
    "get_range": b"1",
    "size": 1,
    "list_names": ["x"],
    "list_folders": ["f"],
    "put_if_absent": True,
    "folds_case": False,
}
"""What a request returns of the object ``f/x``."""
CHANGED = {"put": {"y"}, "put_if_absent": {"z"}, "delete": {"x"}}
"""What comes into the folder, or goes."""
WAYS: dict[str, Callable[[Path], object]] = {
    "not mounted": lose,
    "gone": put_away,
    "no folder": partial(put_away, is_file=True),
}


@pytest.mark.few(13)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("root", ["a", "b"])
@pytest.mark.parametrize("request_", [*REQUESTS, "put_if_absent", "folds_case", "trust"])
def test_a_root_that_went_away_before_a_request_is_passed_over(
    tmp_path: Path,
    request_: str,
    root: str,
    way: Callable[[Path], object],
) -> None:
    """Whatever is asked first by a process that knows both, and whichever of them leads."""
    make(tmp_path).storage.put_if_absent("f/x", b"1")
    storage = reopened(tmp_path).storage
    storage.will_write()
    asked = REQUESTS | {
        "put_if_absent": lambda one: one.put_if_absent("f/z", b""),
        "folds_case": lambda one: one.folds_case(),
        "trust": lambda one: one.trust(),
    }
    way(tmp_path / root)
    found = asked[request_](storage)
    assert found == FOUND.get(request_, found)
    assert storage.list_names("f") == sorted({"x"} ^ CHANGED.get(request_, set()))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_a_disk_is_like_is_asked_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Path], object]
) -> None:
    """A folder that is not there tells nothing, and what it tells later counts."""
    make(tmp_path)
    storage = reopened(tmp_path).storage
    disk = tmp_path / "b"
    way(disk)
    assert not storage.folds_case()
    if disk.is_dir():
        disk.rmdir()
    disk.unlink(missing_ok=True)
    disk.with_name("b-away").rename(disk)
    monkeypatch.setattr(LocalStorage, "folds_case", lambda one: one.url.startswith(str(disk)))
    assert storage.folds_case()


@pytest.mark.parametrize("gone", ["a", "b"])
def test_what_can_be_measured_is(tmp_path: Path, gone: str) -> None:
    """Where nobody writes a disk that is away puts out nobody, and no log is readable."""
    make_written(tmp_path, "1")
    lose(tmp_path / gone)
    found = [*reopened(tmp_path).metrics().with_errors()]
    measured = {one.name: one.value for one in found if isinstance(one, Metric)}
    assert measured["txnlog_replicas_in_sync"] == 2
    assert measured["txnlog_replicas_controller_answers"] == 1
    errors = [one for one in found if isinstance(one, TxnlogError)]
    assert errors
    unreadable = [one for one in found if isinstance(one, Metric) and one.name.endswith("readable")]
    assert sum(one.value for one in unreadable) == len(errors)
