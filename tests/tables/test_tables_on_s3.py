"""Tables of a store on an object store: engines find the segments by URLs of the same bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from published import SCHEMA, rows
from pyiceberg.catalog import load_catalog

import txnlog
from txnlog.errors import InvalidOption
from txnlog.names import TopicPartition
from txnlog.store import Store


@pytest.fixture
def store(s3_options: dict[str, Any], tmp_path: Path) -> Store:
    made = txnlog.open(f"s3://test/{tmp_path.name}/store", create=True, storage_options=s3_options)
    made.create_topic("f", partitions=2, schema=SCHEMA, key=["carrier"])
    return made


def publish_twice(store: Store, publish: Any) -> None:
    """What was committed, then more of it, and less: the rest of a segment is a copy."""
    with store.producer() as producer:
        producer.send_batch("f", rows(0, 10), partition=0)
    first = publish()
    assert (first.files_added, first.files_copied) == (1, 0)
    with store.producer() as producer:
        producer.send_batch("f", rows(10, 20), partition=1)
    store.delete_records({TopicPartition("f", 0): 4})
    second = publish()
    assert (second.files_added, second.files_removed, second.files_copied) == (2, 1, 1)


@pytest.mark.s3
def test_a_delta_table_in_the_same_bucket(
    store: Store, s3_options: dict[str, Any], tmp_path: Path
) -> None:
    """deltalake reads the segments from where they are; commits are puts that do not overwrite."""
    options = {
        "aws_access_key_id": s3_options["key"],
        "aws_secret_access_key": s3_options["secret"],
        "aws_endpoint_url": s3_options["endpoint_url"],
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    url = f"s3://test/{tmp_path.name}/table"
    publish_twice(store, lambda: store.publish_delta("f", url, storage_options=options))
    table = DeltaTable(url, storage_options=options)
    found = table.scan(["carrier", "flight"]).read_all()
    assert sorted(found.column("carrier").to_pylist()) == sorted(f"c{n}" for n in range(4, 20))
    with pytest.raises(InvalidOption, match="lie in each other"):
        store.publish_delta("f", f"{store.url}/t", storage_options=options)


@pytest.mark.s3
def test_an_iceberg_table_in_the_same_bucket(
    store: Store, s3_options: dict[str, Any], tmp_path: Path
) -> None:
    catalog = load_catalog(
        "c",
        **{
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"s3://test/{tmp_path.name}/warehouse",
            "s3.endpoint": s3_options["endpoint_url"],
            "s3.access-key-id": s3_options["key"],
            "s3.secret-access-key": s3_options["secret"],
            "s3.region": "us-east-1",
        },
    )
    publish_twice(store, lambda: store.publish_iceberg("f", catalog, "sales.f"))
    found = catalog.load_table("sales.f").scan(selected_fields=("carrier",)).to_arrow()
    assert sorted(found.column("carrier").to_pylist()) == sorted(f"c{n}" for n in range(4, 20))
