"""Disks that are full, or read-only: what is on them can be read, and nothing can be put there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txnlog
from tests.support.replication.replica_folders import (
    lose,
    make_written,
    reopened,
    values,
    write,
)
from txnlog.errors import CommitStateUnknown, StorageError
from txnlog.replication import Replicas
from txnlog.storage.adapters.local import LocalStorage
from txnlog.storage.failure_messages import failure

Fill = Callable[..., None]


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Have these folders take nothing any more, and the others everything."""
    full: list[str] = []

    def refusing(put: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(storage: LocalStorage, *given: object) -> object:
            if any(f"{storage.url}/".startswith(folder) for folder in full):
                raise StorageError(f"{storage.url}: no space left on device")
            return put(storage, *given)

        return refuse

    for name in ("put_if_absent", "put", "replace", "upload"):
        monkeypatch.setattr(LocalStorage, name, refusing(getattr(LocalStorage, name)))

    def begin(*folders: str) -> None:
        full[:] = [f"{tmp_path / folder}/" for folder in folders]

    return begin


@pytest.fixture
def store(tmp_path: Path) -> txnlog.Store:
    """Three roots, a to c."""
    store = make_written(tmp_path, "1")
    Replicas(store).add(str(tmp_path / "c"))
    return store


def in_sync(store: txnlog.Store) -> tuple[str, ...]:
    return Replicas(store).describe().in_sync


def test_a_set_of_full_disks_does_not_shrink(
    store: txnlog.Store, tmp_path: Path, fill: Fill
) -> None:
    """The last root would be no better, and everything is at one disk when there is room again."""
    producer = store.producer(transactional_id="w")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", value=b"2")
    producer.flush()
    before = in_sync(store)
    fill("a", "b", "c")
    with pytest.raises(CommitStateUnknown, match="no space left"):
        producer.commit_transaction()
    assert in_sync(store) == before
    assert values(reopened(tmp_path)) == ["1"]
    fill()
    producer.commit_transaction()
    producer.close()
    assert in_sync(store) == before
    assert values(reopened(tmp_path)) == ["1", "2"]


def test_an_upload_does_not_shrink_a_set_of_full_disks(
    store: txnlog.Store, tmp_path: Path, fill: Fill
) -> None:
    """Neither when it begins, nor when the rest of it is copied to those that took none."""
    write(store, "2")
    before, name = in_sync(store), "topics/t/data/0/{}.parquet"
    fill("a", "b", "c")
    with pytest.raises(StorageError, match="no space left"):
        store.storage.upload(name.format(1))
    fill("b", "c")
    upload = store.storage.upload(name.format(2))
    upload.write(b"2")
    fill("a", "b", "c")
    with pytest.raises(StorageError, match="no space left"):
        upload.close()
    assert in_sync(store) == before


def test_a_full_disk_goes_out_for_an_upload_while_others_have_room(
    store: txnlog.Store, fill: Fill
) -> None:
    before = in_sync(store)
    fill("c")
    with store.storage.upload("topics/t/data/0/1.parquet") as upload:
        upload.write(b"1")
    assert in_sync(store) == before[:2]


@pytest.mark.parametrize(
    ("full", "left"),
    [("a", "bc"), ("b", "ac"), ("ab", "c"), ("bc", "a"), ("ac", "b")],
    ids=lambda names: names,
)
def test_those_that_are_full_go_out_while_others_have_room(
    store: txnlog.Store, tmp_path: Path, fill: Fill, full: str, left: str
) -> None:
    roots = dict(zip("abc", in_sync(store), strict=True))
    fill(*full)
    write(store, "2")
    assert set(in_sync(store)) == {roots[name] for name in left}
    assert values(reopened(tmp_path)) == ["1", "2"]
    for name in full:  # nothing else is left of the tries
        assert not list((tmp_path / name).glob("incarnation-*/.probe/*"))


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (errno.ENOSPC, "read-only controller"),
        (errno.EROFS, "read-only controller"),
        (errno.EACCES, "degraded"),
    ],
    ids=["full", "read-only", "denied"],
)
def test_a_user_who_may_only_read_does_not_call_the_controller_read_only(
    store: txnlog.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: int,
    told: str,
) -> None:
    lose(tmp_path / "c")

    def refuse(storage: LocalStorage, name: str, data: bytes) -> None:
        error = OSError(refused, os.strerror(refused))
        raise failure("writing", storage.url, name, error) from error

    monkeypatch.setattr(LocalStorage, "put", refuse)
    assert Replicas(reopened(tmp_path)).describe().condition == told
