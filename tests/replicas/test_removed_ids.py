"""The log of a transactional id is removed at one root, and a killed process leaves the other's."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.log.settling import settle_early
from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    make_written,
    reopened,
    values,
)
from txnlog import names
from txnlog.errors import TransactionalIdNotFound
from txnlog.log import transaction_log
from txnlog.replication import Replicas
from txnlog.storage.adapters.local import LocalStorage
from txnlog.testing import ProcessStopped


@pytest.mark.parametrize("left", [1, 2, 3])
def test_what_a_root_has_kept_of_it_stays_removed_when_that_leads(
    tmp_path: Path, left: int
) -> None:
    """However many of its first states are left; the id's next life has later numbers."""
    store = make_written(tmp_path, "a")
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", value=b"b")
        producer.commit_transaction()
    log = store.logs.transactions
    head = log.head("x")
    assert head is not None
    assert head.number == 3
    folder = Path(names.transaction_log("x"))
    first, second = tmp_path / FIRST / folder, tmp_path / SECOND / folder
    away = tmp_path / "away"
    shutil.copytree(second, away)
    log.remove(head)
    assert not [*first.rglob("*.json")]
    second.mkdir(parents=True, exist_ok=True)
    for number in range(left):
        name = f"{number:020}.json"
        shutil.copy(away / name, second / name)
    Replicas(store).elect("r1")
    later = reopened(tmp_path)
    assert later.logs.transactions.ids() == ["x"]
    with pytest.raises(TransactionalIdNotFound):
        later.transactions.describe("x")
    with later.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", value=b"c")
    found = reopened(tmp_path).logs.transactions.head("x")
    assert found is not None
    assert found.number > head.number
    assert found.state.producer_epoch >= head.state.producer_epoch
    assert values(reopened(tmp_path)) == ["a", "b", "c"]


def live(folder: Path, transactions: int) -> None:
    """As a process of its own, which first cleans up the id's log."""
    with reopened(folder).producer(transactional_id="x") as producer:
        producer.init_transactions()
        for _ in range(transactions):
            with producer.transaction():
                producer.send("t", value=b"x")


@pytest.mark.few(4)
@pytest.mark.parametrize("root", ["a", "b"])
@pytest.mark.parametrize("stopped_at", [1, 2, 3, 4])
def test_a_removal_that_is_killed_at_any_deletion_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_at: int, root: str
) -> None:
    """It leaves nothing at any root, and the id's next life puts none of them out."""
    settle_early(monkeypatch)
    monkeypatch.setattr(transaction_log, "_KEPT_ENTRIES", 1)
    make_written(tmp_path)
    for _ in range(2):
        live(tmp_path, 4)
    folders = [tmp_path / one / names.transaction_log("x") for one in (FIRST, SECOND)]
    assert all([*folder.glob("*.closed-*")] for folder in folders)
    log = reopened(tmp_path).logs.transactions
    head = log.head("x")
    assert head is not None
    deletions = 0

    def delete(storage: LocalStorage, doomed: Iterable[str]) -> None:
        nonlocal deletions
        some = [*doomed]
        deletions += bool(some) and f"/{root}/" in storage.url
        if deletions == stopped_at:
            raise ProcessStopped
        deleted(storage, some)

    deleted = LocalStorage.delete
    with monkeypatch.context() as stopping:
        stopping.setattr(LocalStorage, "delete", delete)
        with suppress(ProcessStopped):
            log.remove(head)
    store = reopened(tmp_path)
    found = store.logs.transactions.head("x")
    if found is not None:
        store.logs.transactions.remove(found)
        assert [path for folder in folders for path in folder.glob("*")] == []
    for _ in range(4):
        live(tmp_path, 3)
    assert len(values(reopened(tmp_path))) == 20
    assert sorted(Replicas(reopened(tmp_path)).describe().in_sync) == ["r0-0", "r1-0"]
