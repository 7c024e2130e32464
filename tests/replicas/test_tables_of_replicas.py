"""Tables of a store on several roots: refused, since no URL stays that of its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

import txnlog
from tests.support.replication.replica_folders import make, objects
from txnlog import names
from txnlog.errors import InvalidOption
from txnlog.replication.roots.replicated_storage import ReplicatedStorage
from txnlog.results import MaintenanceFailure
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import Store, attach
from txnlog.tables.fresh_table import FreshTables
from txnlog.testing import VirtualClock
from txnlog.ui.catalog.server import serve

pytestmark = pytest.mark.usefixtures("unlogged")


def fill(store: Store) -> None:
    schema = pa.schema([pa.field("id", pa.int64())])
    store.topics.create("t", schema=schema)
    with store.producer() as producer:
        producer.send("t", {"id": 1})
    store.topics.delete_records({txnlog.TopicPartition("t", 0): 0})


def delta(store: Store, folder: Path) -> None:
    store.tables.publish_delta("t", str(folder / "table"))


def iceberg(store: Store, folder: Path) -> None:
    place = f"sqlite:///{folder / 'catalog.db'}"
    catalog = load_catalog("default", uri=place, warehouse=f"file://{folder}")
    try:
        store.tables.publish_iceberg("t", catalog, "sales.t")
    finally:
        assert catalog.list_namespaces() == []


def by_maintenance(store: Store, folder: Path) -> None:
    store.topics.alter("t", config={"table.publish": f"delta:{folder / 'table'}"})
    for step in store.maintain(publish=f"delta:{folder}"):
        if isinstance(step, MaintenanceFailure) and step.part == "publishing":
            raise step.error


def catalog(store: Store, folder: Path) -> None:
    FreshTables(store.logs).load("t")


def served(store: Store, folder: Path) -> None:
    serve(store, announce=lambda *_: pytest.fail("it is served"))


@pytest.mark.parametrize("url", [None, "s3://bucket/control", "hdfs://host/control"])
@pytest.mark.parametrize("publish", [delta, iceberg, by_maintenance, catalog, served])
def test_no_table_names_its_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    publish: Callable[[Store, Path], None],
    url: str | None,
) -> None:
    """Wherever its controller is: there are no data there. Nothing is put before it is said."""
    store = make(tmp_path)
    fill(store)
    if url is not None:
        monkeypatch.setattr(ReplicatedStorage, "url", property(lambda _: url))
    with pytest.raises(InvalidOption, match=r"lies on several roots: .* stores on one root"):
        publish(store, tmp_path)
    assert not (tmp_path / "table").exists()
    assert [name for name in objects(tmp_path / "a") if names.TABLES in name] == []


def test_what_a_catalog_has_put_is_no_damage(tmp_path: Path, clock: VirtualClock) -> None:
    """It has no checksum of its own: others read it."""
    (tmp_path / "s").mkdir()
    store = attach(LocalStorage(str(tmp_path / "s")), create=True, clock=clock)
    fill(store)
    FreshTables(store.logs).load("t")
    found = [name for name in objects(tmp_path / "s") if name.startswith(f"{names.TABLES}/")]
    assert [name for name in found if name.endswith(".json")]
    assert list(filter(names.is_framed, found)) == []
