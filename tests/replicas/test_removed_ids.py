"""The log of a transactional id is removed at one root, and a killed process leaves the other's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.replication.replica_folders import (
    FIRST,
    SECOND,
    make_written,
    reopened,
    skip_probes,
    values,
)
from txnlog import names
from txnlog.errors import TransactionalIdNotFound
from txnlog.replication import Replicas


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_probes(monkeypatch)


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
