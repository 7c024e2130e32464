"""A table that somebody else has prepared leads its publisher neither elsewhere nor into a trap."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

import txnlog
from tests.support.storage.listening_server import listening
from txnlog.errors import InvalidOption, StorageError
from txnlog.store import Store

KEY = "AKIDOFTHEUSER"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = txnlog.open(tmp_path / "store", create=True)
    made.topics.create("f", schema=pa.schema([("a", pa.int32())]))
    with made.producer() as producer:
        producer.send("f", {"a": 1})
    return made


def catalog_at(folder: Path, **properties: str) -> Catalog:
    folder.mkdir(exist_ok=True)
    uri = f"sqlite:///{folder / 'catalog.db'}"
    return load_catalog("c", uri=uri, warehouse=f"file://{folder}", **properties)


@pytest.mark.parametrize("key", ["manifest-list", "location"])
def test_an_iceberg_table_sends_nothing_to_where_it_points(
    store: Store, tmp_path: Path, key: str
) -> None:
    """Its metadata names a bucket, for which the catalog has the user's keys."""
    with listening() as (host, asked):
        keys = {"s3.endpoint": f"http://{host}", "s3.access-key-id": KEY}
        catalog = catalog_at(
            tmp_path / "tables", **keys, **{"s3.secret-access-key": "s", "s3.region": "x"}
        )
        store.tables.publish_iceberg("f", catalog, "sales.f")
        (metadata,) = {
            Path(catalog.load_table("sales.f").metadata_location.removeprefix("file://"))
        }
        known = json.loads(metadata.read_text())
        at = known if key == "location" else known["snapshots"][-1]
        at[key] = f"s3://elsewhere/{key}"
        metadata.write_text(json.dumps(known))
        with store.producer() as producer:
            producer.send("f", {"a": 2})
        with pytest.raises(InvalidOption, match=f"names s3://elsewhere/{key}, which is neither"):
            store.tables.publish_iceberg("f", catalog, "sales.f")
        assert asked == []


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to(path.parents[1] / "other")


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 200 << 30)


# The first one fails at once where nothing is looked at; for the second one a library waits.
TRAPS = {_link: "is a symbolic link", _fifo: "is a FIFO", _sparse: "has 214,748,364,800 bytes"}


def test_a_log_of_a_table_has_files_alone(store: Store, tmp_path: Path) -> None:
    """The libraries would wait for what is none, or read without an end."""
    catalog = catalog_at(tmp_path / "tables")
    store.tables.publish_delta("f", str(tmp_path / "delta"))
    store.tables.publish_iceberg("f", catalog, "sales.f")
    (metadata,) = (tmp_path / "tables").rglob("metadata")
    delta = partial(store.tables.publish_delta, "f", str(tmp_path / "delta"))
    iceberg = partial(store.tables.publish_iceberg, "f", catalog, "sales.f")
    for trap, says in TRAPS.items():
        for publish, path in (
            (delta, tmp_path / "delta" / "_delta_log" / f"{1:020d}.json"),
            (iceberg, metadata / "x.json"),
        ):
            trap(path)
            with pytest.raises(StorageError, match=f"{path.name}.*{says}"):
                publish()
            path.unlink()
    log = tmp_path / "delta" / "_delta_log"
    log.symlink_to(log.rename(tmp_path / "elsewhere"))
    with pytest.raises(StorageError, match="_delta_log is a symbolic link"):
        store.tables.publish_delta("f", str(tmp_path / "delta"))
    log.unlink()
    (tmp_path / "elsewhere").rename(log)
    assert store.tables.publish_delta("f", str(tmp_path / "delta")).version == 0
