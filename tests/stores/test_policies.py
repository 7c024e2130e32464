"""The policies of DEPLOYMENT.md, as they stand there, on a server that enforces them.

versitygw takes bucket policies: the same statements as an identity's, with the identity in them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import txnlog
from tests.stores.servers import CannotStart, versitygw
from tests.support.checkout import ROOT
from tests.support.documents import blocks_of
from txnlog.errors import StorageError, UnknownTopicOrPartition
from txnlog.results import MaintenanceFailure
from txnlog.storage import server_storage
from txnlog.store import Store

URL = "s3://lake/events"
ROLES = ("reader", "member", "writer", "maintainer")
SECRETS = {role: f"{role}-secret" for role in ROLES}


def statements(role: str) -> list[dict[str, Any]]:
    """Of the policy below the heading that begins with the role's name."""
    (block,) = (
        block
        for block in blocks_of(ROOT / "docs" / "DEPLOYMENT.md")
        if block.language == "json" and block.heading.lower().startswith(f"a {role}")
    )
    return [{**one, "Principal": {"AWS": [role]}} for one in json.loads(block.text)["Statement"]]


Open = Callable[[str], Store]


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of the server, so each role makes sure of it before it first writes."""
    monkeypatch.setattr(server_storage, "_CHECKS", {})


@pytest.fixture(scope="module")
def open_as(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Opens the store with a role's key; made by one who may do everything."""
    import s3fs

    try:
        running = versitygw.run(tmp_path_factory.mktemp("policies"), users=SECRETS)
        server = running.__enter__()
    except CannotStart as why:
        pytest.skip(f"versitygw cannot be started: {why}")
    try:
        owner = dict(server.options)
        files: Any = s3fs.S3FileSystem(**owner, skip_instance_cache=True)
        files.call_s3("create_bucket", Bucket="lake")
        every = [one for role in ROLES for one in statements(role)]
        policy = {"Version": "2012-10-17", "Statement": every}
        files.call_s3("put_bucket_policy", Bucket="lake", Policy=json.dumps(policy))
        fill(txnlog.open(URL, create=True, storage_options=owner))

        def open_store(role: str) -> Store:
            return txnlog.open(URL, storage_options={**owner, "key": role, "secret": SECRETS[role]})

        yield open_store
    finally:
        running.__exit__(None, None, None)


def fill(store: Store) -> None:
    """Topics with entries behind a checkpoint, and a transaction that nobody ends."""
    for topic in ("orders", "paid", "others"):
        store.topics.create(topic, partitions=2)
    producer = store.producer(transactional_id="left", transaction_timeout_ms=1)
    producer.init_transactions()
    for number in range(70):
        with producer.transaction():
            for topic in ("orders", "others"):
                producer.send(topic, b"%d" % number)
    producer.begin_transaction()
    producer.send("orders", b"never committed")
    producer.flush()


def write(store: Store, topic: str, transactional_id: str = "pay-1", count: int = 1) -> None:
    producer = store.producer(transactional_id=transactional_id)
    producer.init_transactions()
    for _ in range(count):
        with producer.transaction():
            producer.send(topic, b"x")


def read_in_group(store: Store, group_id: str) -> int:
    consumer = store.consumer("orders", group_id=group_id, auto_offset_reset="earliest")
    with consumer:
        count = sum(len(consumer.poll(timeout_ms=0)) for _ in range(4))
        consumer.commit()
    return count


def refused(call: Callable[[], object]) -> None:
    """It is, at once, and the message names what credentials need."""
    with pytest.raises(StorageError, match=r"permission is denied: .*s3:GetObject") as told:
        call()
    assert not told.value.retriable


def test_a_reader_reads_and_changes_nothing(open_as: Open) -> None:
    store = open_as("reader")
    assert store.scan("orders").to_arrow().num_rows >= 70
    assert store.consumer("orders", auto_offset_reset="earliest").poll()
    with pytest.raises(UnknownTopicOrPartition):
        store.scan("none")
    for call in (
        lambda: write(store, "orders"),
        lambda: read_in_group(store, "billing"),
        lambda: store.topics.create("new"),
        lambda: store.topics.delete("orders"),
        store.maintain,
    ):
        refused(call)


def test_a_member_commits_for_its_group_alone(open_as: Open) -> None:
    store = open_as("member")
    assert read_in_group(store, "billing") >= 70
    refused(lambda: read_in_group(store, "audit"))
    refused(lambda: write(store, "orders"))


def test_a_writer_writes_its_topics_and_ends_what_others_left(open_as: Open) -> None:
    """In small and large appends; enough of them that checkpoints and manifests are put."""
    store = open_as("writer")
    write(store, "paid", count=70)
    with store.producer() as producer:
        producer.send("paid", b"without a transaction")
    producer = store.producer(transactional_id="pay-2")
    producer.init_transactions()
    large = pa.table({"value": [os.urandom(1_000_000) for _ in range(20)]})
    with producer.transaction():
        producer.send_batch("paid", large)
    producer.begin_transaction()
    producer.send_batch("paid", large)
    producer.flush()
    producer.abort_transaction()
    consumer = store.consumer("orders", group_id="pay", auto_offset_reset="earliest")
    with consumer, producer.transaction():
        records = consumer.poll()
        ends = {txnlog.TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}
        for record in records:
            producer.send("paid", record.value)
        producer.send_offsets_to_transaction(ends, consumer.group_metadata())
    assert store.scan("paid").to_arrow().num_rows == 70 + 1 + 20 + len(records)
    refused(lambda: write(store, "others"))
    refused(lambda: store.topics.create("new"))
    refused(lambda: store.topics.delete("orders"))


def test_a_maintainer_does_all_steps(open_as: Open) -> None:
    steps = open_as("maintainer").maintain()
    assert [step for step in steps if isinstance(step, MaintenanceFailure)] == []
    assert "Merge" in {type(step).__name__ for step in steps}
