"""The examples of docs/CLI.md run as they stand, each on a store of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txnlog
from tests.support.checkout import ROOT
from tests.support.cli.cli_command import FIRST_MS
from tests.support.documents import Block, Runner, blocks_of
from txnlog import ConsumerConfig, Store, TopicPartition
from txnlog.replication import Follower, Replicas, open_replicas

BLOCKS = [block for block in blocks_of(ROOT / "docs" / "CLI.md") if block.reason is None]
MAKING = ("txnlog store create", "txnlog replicas create", "txnlog topics create", "txnlog import")
"""Verbs whose examples make what is there in the others'."""

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples name: ``data/store``, a broker's folder, and files in the folder itself."""
    folder = tmp_path_factory.mktemp("documents")
    store = txnlog.open(str(folder / "data" / "store"), create=True)
    store.topics.create("orders", partitions=2, config={"cleanup.policy": "compact"})
    for topic in ("paid", "copy", "old-topic", "gone"):
        store.topics.create(topic, partitions=2)
    columns = pa.schema([("carrier", pa.string()), ("flight", pa.int32()), ("gate", pa.string())])
    store.topics.create("flights", schema=columns, key=["carrier"])
    with store.producer() as producer:
        for number in range(1200):
            value = f'{{"id": {number}, "items": [{{"price": {number}}}]}}'
            producer.send("orders", value, "alice", 0, FIRST_MS + 1000 * number)
            if number % 24 == 0:  # so many flushes as some entries of the log are asked for
                producer.flush()
        producer.send("old-topic", "old")
        producer.send("gone", None, "bob")
        producer.send("flights", {"carrier": "AA", "flight": 1})
    move_groups(store)
    store.kafka.export_topic("orders", str(folder / "var" / "kafka" / "data"))
    shutil.copytree(folder / "var" / "kafka" / "data" / "orders-0", folder / "orders-0")
    abandoned = store.producer(transactional_id="etl-1", transaction_timeout_ms=900_000)
    abandoned.init_transactions()
    abandoned.begin_transaction()
    abandoned.send("orders", "undecided", "bob", 0)
    abandoned.flush()
    Follower(store, str(folder / "data" / "standby")).follow()
    copied = sorted((folder / "data" / "store").glob("topics/orders/data/*/*.log"))
    shutil.copy(copied[0], folder / "copy-of-a-segment.log")
    (folder / "orders.jsonl").write_text('{"id": 7, "item": "tea"}\n')
    (folder / "flights.jsonl").write_text('{"carrier": "AA", "_deleted": true}\n')
    register_schemas(store, folder)
    return folder


def register_schemas(store: Store, folder: Path) -> None:
    """Seven schemas in the store, and files of two versions of ``orders-value``."""
    item = {"type": "record", "name": "shop.Item", "fields": [{"name": "name", "type": "string"}]}
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    more = {"name": "item", "type": ["null", "shop.Item"], "default": None}
    (folder / "order.avsc").write_text(json.dumps(order))
    (folder / "v2.avsc").write_text(json.dumps(order | {"fields": [*order["fields"], more]}))
    store.schemas.add("item", json.dumps(item))
    store.schemas.add("orders-value", json.dumps(order))
    for number in range(3, 8):
        store.schemas.add(f"other-{number}", json.dumps(item | {"name": f"Other{number}"}))


def move_groups(store: Store) -> None:
    """Offsets of two groups, and one that has had members."""
    for group, offsets in (
        ("etl", {TopicPartition("orders", 0): 30, TopicPartition("old-topic", 0): 0}),
        ("audit", {TopicPartition("orders", 0): 10}),
        ("workers", {TopicPartition("orders", 0): 10}),
    ):
        with store.producer(transactional_id=f"moves-{group}") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send_offsets_to_transaction(offsets, group)
    with store.consumer(
        "orders", group_id="workers", config=ConsumerConfig(group_instance_id="worker-3")
    ) as consumer:
        consumer.poll()


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.heading}-{block.line}")
def test_an_example_runs(
    block: Block,
    prepared: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Each command ends well. ``s3://bucket`` is a bucket on the server of the tests."""
    if block.heading not in MAKING:
        shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    elif block.heading == "txnlog import":
        shutil.copytree(prepared / "var", tmp_path / "var")
    if block.heading in MAKING[2:]:
        txnlog.open(str(tmp_path / "data" / "store"), create=True)
    if "jq " in block.text and not shutil.which("jq"):
        pytest.skip("needs jq")
    variables = {"TXNLOG_STORE": str(tmp_path / "data" / "store")}
    if block.heading.startswith("txnlog replicas") and block.heading not in MAKING:
        make_replicas(tmp_path / "data")
        variables["TXNLOG_STORE"] = str(tmp_path / "data" / "disk1" / "store")
    if block.heading == "txnlog replicas recover":
        shutil.rmtree(tmp_path / "data" / "control")
    if "s3://" in block.text:
        variables |= bucket(request.getfixturevalue("s3_options"), block.heading)
    Runner(tmp_path, variables=variables).run([block])


def make_replicas(folder: Path) -> None:
    """A store on ``disk1`` and ``disk2``; the second one was out, and has come back."""
    first, second = str(folder / "disk1" / "store"), str(folder / "disk2" / "store")
    store = open_replicas([first, second], controller=str(folder / "control"), create=True).store
    store.topics.create("orders")
    Replicas(store).remove("r1")
    Replicas(store).add(second)


def bucket(options: dict[str, Any], heading: str) -> dict[str, str]:
    """An empty bucket, with a store in it unless that is to be made; how its server is found."""
    import s3fs

    filesystem = s3fs.S3FileSystem(**options)
    if filesystem.exists("bucket"):
        filesystem.rm("bucket", recursive=True)
    filesystem.call_s3("create_bucket", Bucket="bucket")
    if heading != "txnlog store create":
        txnlog.open("s3://bucket/store", create=True, storage_options=options)
    return {
        "AWS_ENDPOINT_URL": options["endpoint_url"],
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
        "AWS_DEFAULT_REGION": options["client_kwargs"]["region_name"],
    }
