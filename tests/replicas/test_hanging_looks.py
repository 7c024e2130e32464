"""Who looks at what roots keep, for the controller or to clean, waits for none that hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.replicas.stalled_roots import LAG_MS, Gate
from tests.support.replication.replica_folders import SECOND, lose, make, reopened
from txnlog.errors import NotEnoughReplicas, StorageError
from txnlog.replication import Replicas, recover_controller
from txnlog.replication.examination import _check_pointers
from txnlog.replication.roots.agreement import MemberFailed
from txnlog.replication.roots.epoch_cleaning import clean_epochs
from txnlog.replication.roots.replicated_storage import ReplicatedStorage, find_replicated
from txnlog.replication.roots.trim import read_notes
from txnlog.replication.roots.watermarks import watermarks
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import attach
from txnlog.testing import VirtualClock

Look = Callable[[Path, ReplicatedStorage], object]


@pytest.fixture
def storage(tmp_path: Path) -> ReplicatedStorage:
    make(tmp_path, **{"replica.lag.time.max.ms": LAG_MS})
    found = find_replicated(reopened(tmp_path, "a").storage)
    assert found is not None
    return found


def read(_: Path, storage: ReplicatedStorage) -> None:
    with pytest.raises(StorageError, match="Without it everything can be read while all roots"):
        storage.agreement.refresh()


def recover(folder: Path, _: ReplicatedStorage) -> None:
    with pytest.raises(NotEnoughReplicas, match=r"r1 must answer.* there was no answer for"):
        recover_controller(str(folder / "a"), str(folder / "new"), clock=VirtualClock())


@pytest.mark.parametrize(
    ("where", "kind"),
    [("b", "get"), ("b", "list_folders"), (SECOND, "list_names"), (SECOND, "get")],
)
@pytest.mark.parametrize("look", [read, recover])
def test_the_notes_that_roots_keep(
    tmp_path: Path, storage: ReplicatedStorage, gate: Gate, look: Look, where: str, kind: str
) -> None:
    lose(tmp_path / "control")
    gate.close(tmp_path / where, kind)
    look(tmp_path, storage)
    assert gate.asked


def test_the_root_by_which_the_store_was_opened(
    tmp_path: Path, storage: ReplicatedStorage, gate: Gate
) -> None:
    lose(tmp_path / "control")
    gate.close(tmp_path / "a", "get")
    read(tmp_path, storage)
    assert gate.asked == ["get"]


def clean(_: Path, storage: ReplicatedStorage) -> None:
    assert clean_epochs(storage.agreement, kept=1) is None


def look_at_trims(_: Path, storage: ReplicatedStorage) -> None:
    with pytest.raises(MemberFailed, match="no answer"):
        read_notes(storage.agreement, storage.agreement.epoch(), ["r1-0"])


@pytest.mark.parametrize("look", [clean, look_at_trims])
def test_other_notes(tmp_path: Path, storage: ReplicatedStorage, gate: Gate, look: Look) -> None:
    gate.close(tmp_path / SECOND, "list_names")
    look(tmp_path, storage)
    assert gate.asked == ["list_names"]


def test_where_the_controller_has_moved(
    tmp_path: Path, storage: ReplicatedStorage, gate: Gate
) -> None:
    Replicas(reopened(tmp_path)).move_controller(str(tmp_path / "new"))
    gate.close(tmp_path / "b", "get")
    assert not [*_check_pointers(storage)]
    assert gate.asked == ["get"]


def verify(storage: ReplicatedStorage) -> None:
    with pytest.raises(StorageError, match=r"r1-0.* no answer"):
        [*Replicas(attach(storage)).verify()]


def describe_lag(storage: ReplicatedStorage) -> None:
    found = Replicas(attach(storage)).describe(with_lag=True)
    assert [one.objects_behind for one in found.replicas] == [None, None]


def look_at_watermarks(storage: ReplicatedStorage) -> None:
    assert {one.behind for one in watermarks(storage.agreement)} == {("r1-0",)}


@pytest.mark.parametrize("look", [verify, describe_lag, look_at_watermarks])
def test_all_that_a_root_has(
    tmp_path: Path,
    storage: ReplicatedStorage,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[ReplicatedStorage], None],
) -> None:
    """It has shown its mark, and hangs then."""
    reopened(tmp_path).topics.create("t", partitions=1)
    gate.close(tmp_path / SECOND, "list_all")
    listed = LocalStorage.list_all

    def hang(of: LocalStorage, *given: Any) -> Iterator[tuple[str, int]]:
        if of.url == str(tmp_path / SECOND):
            gate.close(tmp_path / SECOND, "get")
        return listed(of, *given)

    monkeypatch.setattr(LocalStorage, "list_all", hang)
    look(storage)
    assert gate.asked[0] == "list_all"
