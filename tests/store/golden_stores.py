"""How the stores in ``golden/`` were made.

``python -m tests.store.golden_stores NAME`` writes ``golden/NAME.zip``
and, beside it, what is read from it: for a format that is new. What is there already is never
written again.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from tests.support.log.proposing import Losing, propose
from tests.support.steps import another, append, begin, send
from txnlog import TopicPartition
from txnlog.log import topic_log
from txnlog.producer import Producer
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import Store, attach
from txnlog.testing import VirtualClock

GOLDEN = Path(__file__).parent / "golden"
BEGAN_MS = 1_750_000_000_000
"""In June 2025: the last transaction is past its timeout."""
PARTITIONS = 3


def fill(store: Store) -> None:
    """Topics ``columns`` and ``rows``, with manifests, checkpoints and an open transaction."""
    for topic, record_format in (("columns", "columns"), ("rows", "kafka")):
        config = {"record.format": record_format}
        store.topics.create(topic, partitions=PARTITIONS, config=config)
    with store.producer(transactional_id="job") as producer:
        producer.init_transactions()
        for turn in range(12):
            producer.begin_transaction()
            for topic in ("columns", "rows"):
                _send(producer, topic, b"t%d" % turn)
            producer.send_offsets_to_transaction({TopicPartition("columns", 0): turn}, "group")
            if turn % 4 == 3:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    with store.producer() as producer:
        for turn in range(4):
            _send(producer, "columns", b"plain%d" % turn)
            producer.flush()
            producer.send("rows", b"alone%d" % turn, partition=0)
            producer.flush()
    for topic in ("columns", "rows"):
        log = store.logs.fresh_topic(topic)
        with patch.multiple(topic_log, KEPT_ENTRIES=4, SETTLED_AT_ONCE=8):
            log.checkpoint()
    store.topics.delete_records({TopicPartition("rows", 0): 3})
    with store.producer() as producer:
        _send(producer, "rows", b"late")
    last = store.producer(transactional_id="open")
    last.init_transactions()
    last.begin_transaction()
    _send(last, "columns", b"never")
    last.flush()


def _send(producer: Producer, topic: str, word: bytes) -> None:
    for partition in range(PARTITIONS):
        producer.send(topic, b"%s-%d" % (word, partition), partition=partition)


def read(store: Store) -> dict[str, object]:
    """What the tests expect, read by the version that has written it."""
    found: dict[str, list[list[object]]] = {}
    snapshot = store.snapshot(["columns", "rows"])
    for topic in ("columns", "rows"):
        table = snapshot.scan(topic, columns=["partition", "offset", "value"]).to_arrow()
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        found[topic] = [[p, offset, value.decode()] for p, offset, value in rows]
    committed = store.consumer("columns", group_id="group").committed(TopicPartition("columns", 0))
    assert committed is not None
    return {"records": found, "group": committed.offset}


SCHEMA = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        ("flight", pa.int32()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("price", pa.decimal128(9, 2)),
        ("legs", pa.list_(pa.struct([("to", pa.string())]))),
    ]
)


def fill_parquet(store: Store) -> None:
    """Topics of Parquet segments, ``typed`` and ``bytes``, and one, ``t``, with a bundle.

    Of ``typed`` the schema has changed, and a part is compacted, so that it has gaps.
    """
    config: dict[str, object] = {"cleanup.policy": "compact", "compression.type": "lz4"}
    store.topics.create("typed", partitions=2, schema=SCHEMA, key=["carrier"], config=config)
    config = {"record.format": "parquet", "compression.type": "zstd"}
    store.topics.create("bytes", partitions=2, config=config)
    store.topics.create("t", partitions=2)
    with store.producer(transactional_id="job") as producer:
        producer.init_transactions()
        for turn in range(8):
            producer.begin_transaction()
            rows = [_flight(turn, number) for number in range(turn, turn + 5)]
            producer.send_batch("typed", pa.Table.from_pylist(rows, SCHEMA))
            producer.send("bytes", b"value%d" % turn, b"key%d" % turn, headers=[("h", b"1")])
            if turn % 4 == 3:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    store.maintenance.compact("typed")
    wider = SCHEMA.set(1, pa.field("flight", pa.int64())).remove(3).append(pa.field("gate", "int8"))
    store.topics.alter("typed", schema=wider)
    with store.producer() as producer:
        producer.send_batch("typed", pa.table({"carrier": ["new"], "flight": [1 << 40]}))
        producer.send_batch("typed", pa.table({"carrier": ["c3"], "_deleted": [True]}))
    for topic in ("typed", "bytes"):
        with patch.multiple(topic_log, KEPT_ENTRIES=2, SETTLED_AT_ONCE=2):
            store.logs.fresh_topic(topic).checkpoint()
    store.topics.delete_records({TopicPartition("bytes", 0): 1})
    append(store, b"first", partition=0)
    propose(store, b"proposed", partition=1)
    with begin(another(store, Losing(store)), "bundling") as bundling:
        send(bundling, b"mine", partition=1)
        bundling.commit_transaction()


def _flight(turn: int, number: int) -> dict[str, object]:
    return {
        "carrier": f"c{number}",
        "flight": turn,
        "at": datetime.fromtimestamp(BEGAN_MS // 1000 + turn, UTC),
        "price": None if number % 2 else Decimal(number) / 4,
        "legs": [{"to": "X"}, None] if turn % 2 else None,
    }


def read_parquet(store: Store) -> dict[str, list[list[str]]]:
    """The same for these topics: each row as text, ordered by partition and offset."""
    snapshot = store.snapshot(["typed", "bytes", "t"])
    columns = {
        "typed": ["_partition", "_offset", "carrier", "flight", "at", "legs", "gate", "_deleted"],
        "bytes": ["partition", "offset", "key", "value", "headers"],
        "t": ["partition", "offset", "value"],
    }
    tables = {topic: snapshot.scan(topic, columns=columns[topic]) for topic in snapshot.topics}
    return {
        topic: [[str(value) for value in row.values()] for row in scan.to_arrow().to_pylist()]
        for topic, scan in tables.items()
    }


KINDS = {"format-1": (fill, read), "format-1-parquet": (fill_parquet, read_parquet)}


def main(name: str) -> None:
    filled, expect = KINDS[name]
    target = GOLDEN / f"{name}.zip"
    assert not target.exists(), f"{target} is there: what was written once stays as it is"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        store = attach(LocalStorage(str(root)), create=True, clock=VirtualClock(BEGAN_MS))
        filled(store)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, path.relative_to(root))
        # Read behind the copy: reading ends the transaction that is open in it.
        expected = expect(attach(LocalStorage(str(root)), clock=VirtualClock(BEGAN_MS + 10**9)))
    (GOLDEN / f"{name}.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
