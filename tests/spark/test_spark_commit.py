"""What the driver of a Spark job does with uploaded segments, when it is interrupted; no Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from txnlog.errors import UnknownTopicOrPartition
from txnlog.log.topic_log import UploadedSegment
from txnlog.segments.records import normalize
from txnlog.spark.batch import commit
from txnlog.storage.base import Storage
from txnlog.storage.counting import CountingStorage
from txnlog.store import Store, attach
from txnlog.write.segment_uploads import SegmentUploader


class Interrupted(CountingStorage):
    """The first create of a name that contains ``part`` is interrupted, as by Ctrl-C."""

    part = "-"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.part in name:
            self.part = "-"
            raise KeyboardInterrupt
        return super().put_if_absent(name, data)


def uploaded(store: Store, topic: str) -> list[UploadedSegment]:
    uploader = SegmentUploader(store.storage, store.topic_spec(topic), store.logs.clock)
    records = normalize(pa.record_batch({"value": [b"x"]}), now_ms=1)
    uploader.write(records, np.zeros(1, dtype=np.int32))
    return uploader.finish()


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("transactions/p/00000000000000000001", []),
        ("topics/t/log/00000000000000000001.json", []),
        ("transactions/p/00000000000000000002", []),
        (".commit", [b"x"]),
        ("transactions/p/00000000000000000003", [b"x"]),
    ],
)
def test_an_interrupt_deletes_nothing_that_is_committed(
    memory_storage: Storage, part: str, expected: list[bytes]
) -> None:
    """Before the decision it is aborted; after it the data stays, and others finish."""
    attach(memory_storage, create=True).create_topic("t")
    storage = Interrupted(memory_storage)
    store = attach(storage)
    segments = {"t": uploaded(store, "t")}
    storage.part = part
    with pytest.raises(KeyboardInterrupt):
        commit.commit_transaction(store, "p", 60_000, segments)
    fresh = attach(memory_storage)
    assert fresh.scan("t").to_arrow().column("value").to_pylist() == expected
    commit.commit_transaction(fresh, "p", 60_000, {"t": uploaded(fresh, "t")})
    assert fresh.scan("t").to_arrow().column("value").to_pylist() == [*expected, b"x"]


def test_what_one_topic_refuses_is_aborted_in_the_other_and_no_file_is_deleted(
    memory_storage: Storage,
) -> None:
    """The append to ``a`` has landed, so an entry names its file: read_uncommitted reads it."""
    store = attach(memory_storage, create=True)
    for topic in ("a", "b"):
        store.create_topic(topic)
    segments = {topic: uploaded(store, topic) for topic in ("a", "b")}
    attach(memory_storage).delete_topic("b")
    attach(memory_storage).create_topic("b")
    with pytest.raises(UnknownTopicOrPartition):
        commit.commit_transaction(store, "p", 60_000, segments)
    fresh = attach(memory_storage)
    assert fresh.describe_transaction("p").status == "CompleteAbort"
    assert fresh.scan("a").record_count == 0
    placed = fresh.scan("a", isolation_level="read_uncommitted").to_arrow()
    assert placed.column("value").to_pylist() == [b"x"]
