"""Long listings are compared in a temporary file: there may be no room for it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.replication.replica_folders import make_written, reopened, values
from txnlog.errors import StorageError
from txnlog.names import TopicPartition
from txnlog.replication import Replicas
from txnlog.replication.roots.listings import Listings
from txnlog.results import MaintenanceFailure


class LittleRoom(sqlite3.Connection):
    """A database that grows to so many pages and no further."""

    def __init__(self, *given: str, pages: int, **options: bool) -> None:
        super().__init__(*given, **options)  # type: ignore[arg-type]
        self.execute("pragma page_size = 512")
        self.execute(f"pragma max_page_count = {pages}")


@pytest.fixture(params=[1])
def pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(LittleRoom, pages=request.param))


@pytest.mark.parametrize("pages", [1, 2, 10], indirect=True)
@pytest.mark.usefixtures("pages")
def test_wherever_it_ends() -> None:
    with pytest.raises(StorageError, match="SQLITE_TMPDIR"):
        Listings(["r0-0"]).add("r0-0", ((f"{number:0100d}", 1) for number in range(1000)))


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda replicas: [*replicas.verify()], id="verify"),
        pytest.param(lambda replicas: replicas.describe(with_lag=True), id="describe"),
        pytest.param(
            lambda replicas: replicas.remove("r1") or replicas.forget("r1-0"), id="forget"
        ),
    ],
)
def test_who_compares_roots_is_told(ask: Callable[[Replicas], object], tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="SQLITE_TMPDIR"):
        ask(Replicas(make_written(tmp_path, "1")))


@pytest.mark.usefixtures("pages")
def test_maintenance_goes_on(tmp_path: Path) -> None:
    store = make_written(tmp_path, "1", "2")
    store.topics.delete_records({TopicPartition("t", 0): 1})
    failed = [step for step in store.maintain() if isinstance(step, MaintenanceFailure)]
    assert {step.part for step in failed} == {"replicas", "vacuum"}  # which lists data at all roots
    assert "SQLITE_TMPDIR" in str(failed[0].error)
    assert values(reopened(tmp_path)) == ["2"]
