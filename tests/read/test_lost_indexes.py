"""Segments whose indexes are gone or damaged."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from txnlog.names import TopicPartition
from txnlog.store import Store

T0 = TopicPartition("t", 0)
pytestmark = pytest.mark.store(topic_config={"record.format": "columns"})


@pytest.mark.condition(42)
@pytest.mark.parametrize("damage", ["delete", "truncate", "flip"])
def test_indexes_are_only_accelerators(store: Store, damage: str) -> None:
    """Without indexes, or with damaged ones, every offset and time is found."""
    random = Random(1)
    rows = [random.randbytes(200) for _ in range(30_000)]
    with store.producer() as producer:
        times = pa.array(range(1000, 31_000), pa.int64())
        producer.send_batch("t", pa.record_batch({"value": rows, "timestamp": times}))
    indexes = [n for n, _ in store.storage.list_all("topics/t/data") if n.endswith("index")]
    assert len(indexes) == 2
    for name in indexes:
        content = bytearray(store.storage.get(name))
        store.storage.delete([name])
        if damage == "truncate":
            store.storage.put(name, bytes(content[:-5]))
        elif damage == "flip":
            content[3] ^= 0x40
            store.storage.put(name, bytes(content))
    for offset in (0, 1, 12_345, 29_999):
        table = store.scan("t", {0: offset}, {0: offset + 1}).to_arrow()
        assert table.column("value").to_pylist() == [rows[offset]]
        found = store.consumer("t").offsets_for_times({T0: 1000 + offset})[T0]
        assert found is not None
        assert found.offset == offset
