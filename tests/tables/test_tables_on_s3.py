"""Tables of a store on an object store: engines find the segments by URLs of the same bucket."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyiceberg.catalog import load_catalog

import txnlog
from tests.tables.published import SCHEMA, rows
from txnlog.errors import InvalidOption
from txnlog.names import TopicPartition
from txnlog.results import TablePublication
from txnlog.store import Store

pytestmark = [pytest.mark.s3, pytest.mark.more]

BUCKETS = ("bucket", "other")
COLUMNS = [name for name in SCHEMA.names if name != "legs"] + ["_timestamp", "_headers"]
"""pyiceberg takes null lists of structs for empty ones."""


@pytest.fixture
def s3() -> Iterator[dict[str, Any]]:
    """Storage options of a server in a process of its own: deltalake waits with the GIL held."""
    from tests.support.storage import moto_server

    command = [sys.executable, moto_server.__file__]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        options = moto_server.options_of(int(server.stdout.readline()))
        import s3fs

        for name in BUCKETS:
            s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket=name)
        yield options
        server.kill()


@pytest.fixture
def store(s3: dict[str, Any]) -> Store:
    made = txnlog.open("s3://bucket/st o%re", create=True, storage_options=s3)
    made.topics.create("f", partitions=2, schema=SCHEMA, key=["carrier"])
    return made


def publish_twice(store: Store, publish: Callable[[], TablePublication]) -> None:
    """What was committed, then more of it and less: what is left of a segment is copied."""
    with store.producer() as producer:
        producer.send_batch("f", rows(0, 10), partition=0)
    first = publish()
    assert (first.added_files, first.copied_files) == (1, 0)
    with store.producer() as producer:
        producer.send_batch("f", rows(10, 20), partition=1)
    store.topics.delete_records({TopicPartition("f", 0): 4})
    second = publish()
    assert (second.added_files, second.removed_files, second.copied_files) == (2, 1, 1)


def check_rows(store: Store, found: pa.Table) -> None:
    """Assert that these are the rows of the topic. NaN is equal to NaN."""
    wanted = store.scan("f", columns=found.column_names).to_arrow()
    assert len(wanted) == 16
    found = found.cast(wanted.schema)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))


@pytest.mark.parametrize(
    "bucket",
    [
        "bucket",
        pytest.param("other", marks=pytest.mark.xfail(raises=DeltaError, reason="deltalake's")),
    ],
)
def test_delta_tables_refer_to_objects(store: Store, s3: dict[str, Any], bucket: str) -> None:
    """The library reads the segments where they are; its commits are puts that do not overwrite."""
    options = {
        "aws_access_key_id": s3["key"],
        "aws_secret_access_key": s3["secret"],
        "aws_endpoint_url": s3["endpoint_url"],
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    url = f"s3://{bucket}/ta ble"
    publish_twice(store, lambda: store.tables.publish_delta("f", url, storage_options=options))
    table = DeltaTable(url, storage_options=options)
    check_rows(store, pa.table(table.scan(columns=COLUMNS)))
    with duckdb.connect() as connection:
        connection.register("one", table.scan(columns=["carrier"], predicate="carrier = 'c7'"))
        assert connection.sql("SELECT * FROM one").fetchall() == [("c7",)]
    with pytest.raises(InvalidOption, match="are nested"):
        store.tables.publish_delta("f", f"{store.url}/t", storage_options=options)


@pytest.mark.parametrize("bucket", BUCKETS)
def test_iceberg_tables_refer_to_objects(
    store: Store, s3: dict[str, Any], tmp_path: Path, bucket: str
) -> None:
    """The library reads the segments where they are, and copies lie in the warehouse."""
    properties = {
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{bucket}/ware house",
        "s3.endpoint": s3["endpoint_url"],
        "s3.access-key-id": s3["key"],
        "s3.secret-access-key": s3["secret"],
        "s3.region": "us-east-1",
    }
    catalog = load_catalog("c", **properties)
    publish_twice(store, lambda: store.tables.publish_iceberg("f", catalog, "sales.f"))
    found = catalog.load_table("sales.f").scan(selected_fields=(*COLUMNS,)).to_arrow()
    check_rows(store, found.select(COLUMNS))
