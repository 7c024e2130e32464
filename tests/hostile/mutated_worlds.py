"""Small stores in memory that have every kind of object, to be changed by mutations.

Each is a world of its own, so that reading all of one after each change takes little.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.memory import MemoryFileSystem

from tests.hostile.mutations import framed, repaired
from tests.support.log.proposing import Losing, propose
from tests.support.steps import another, begin, checkpoint, send, stop_before_marking
from txnlog import TopicPartition
from txnlog.log import topic_log
from txnlog.replication import open_replicas
from txnlog.replication.standby.follower import Follower
from txnlog.store import Store, attach
from txnlog.testing import HeapStorage, VirtualClock

BEGAN_MS = 1_750_000_000_000
BROKER = Path(__file__).parent.parent / "kafka" / "broker"
SCHEMA = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        ("flight", pa.int32()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("price", pa.decimal128(9, 2)),
        ("legs", pa.list_(pa.struct([("to", pa.string())]))),
    ]
)
Files = dict[str, bytes]


def files_of(storage: HeapStorage) -> Files:
    return {name: storage.get(name) for name, _ in storage.list_all("")}


def storage_of(files: Mapping[str, bytes]) -> HeapStorage:
    storage = HeapStorage()
    for name, data in files.items():
        storage.put(name, data)
    return storage


def _new(**config: object) -> Store:
    return attach(HeapStorage(), create=True, clock=VirtualClock(BEGAN_MS), config=config)


def logs() -> Files:
    """Entries, markers, bundles, proposals, notes, a group with members, and open transactions."""
    store = _new()
    store.topics.create("t", partitions=2)
    for name in ("job", "failing", "decided"):
        producer = begin(store, name)
        send(producer, b"%s" % name.encode(), b"more", partition=0)
        producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
        if name == "failing":
            producer.abort_transaction()
        elif name == "decided":
            stop_before_marking(producer)
            producer.commit_transaction()
        else:
            producer.commit_transaction()
    member = store.consumer("t", group_id="members", auto_offset_reset="earliest")
    for _ in range(3):
        member.poll()
    member.commit()
    with store.producer() as plain:
        plain.send("t", b"shared", partition=0)
        plain.send("t", b"shared", b"key", 1, headers=[("h", b"1")])
    propose(store, b"proposed", partition=1)
    with begin(another(store, Losing(store)), "bundling") as bundling:
        send(bundling, b"mine", partition=1)
        bundling.commit_transaction()
    propose(store, b"proposed too", partition=1)
    store.topics.alter("t", config={"retention.ms": "1000000000"})
    store.topics.delete_records({TopicPartition("t", 0): 1})
    send(begin(store, "open", 800_000), b"never", partition=1)
    nonce = "0" * 32
    retired = {"kind": "retired", "nonce": nonce, "at_ms": BEGAN_MS, "topic_id": ""}
    retired |= {"stage": "candidate", "segments": [[0, "nobody"], [-1, "nor-these"]]}
    store.storage.put(f"topics/t/retired/{nonce}.json", framed(retired))
    left = {"kind": "handed-out", "store_id": store.store_id, "until_ms": BEGAN_MS}
    left |= {"transaction": {"transactional_id": "job", "number": 0, "producer_id": 0}}
    store.storage.put(f"staging/{nonce}.{nonce}-1.{nonce}.read", framed(left))
    seen = {"kind": "seen", "at_ms": BEGAN_MS}
    store.storage.put(f"transactions/open/{0:020}.seen-{BEGAN_MS}", framed(seen))
    return files_of(store.storage)  # type: ignore[arg-type] # a HeapStorage


def settled() -> Files:
    """Manifests, their lists, rewrites, checkpoints, closing marks, and an id that has expired."""
    store = _new()
    store.topics.create("t", partitions=2, config={"cleanup.policy": "compact"})
    with (
        patch.multiple(topic_log, KEPT_ENTRIES=2, SETTLED_AT_ONCE=2),
        patch.multiple("txnlog.log.chapters", CHAPTER=1, FANOUT=4),
    ):
        with store.producer(transactional_id="job") as producer:
            producer.init_transactions()
            for turn in range(8):
                producer.begin_transaction()
                for partition in (0, 1):
                    producer.send("t", b"%d" % turn, b"k%d" % (turn % 3), partition)
                producer.send_offsets_to_transaction({TopicPartition("t", 0): turn}, "g")
                if turn == 3:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
        checkpoint(store)
        store.maintenance.compact("t")
        for turn in range(4):
            with store.producer() as plain:
                plain.send("t", b"plain", b"k%d" % turn, 0)
        checkpoint(store)
        store.logs.group("g").refresh()
        store.logs.group("g").checkpoint()
        with store.producer() as plain:
            plain.send("t", b"last", b"k", 1)
    return files_of(store.storage)  # type: ignore[arg-type] # a HeapStorage


def indexed() -> Files:
    """A segment that is large enough for indexes."""
    store = _new()
    config = {"record.format": "kafka", "compression.type": "none"}
    store.topics.create("t", config=config)
    random = Random(1)
    for _ in range(4):
        with store.producer() as plain:
            for number in range(6):
                plain.send("t", random.randbytes(100_000), b"k%d" % number)
    assert store.maintenance.merge("t")
    return files_of(store.storage)  # type: ignore[arg-type] # a HeapStorage


def rows() -> Files:
    """Kafka's record batches in each codec, several to a segment; imported ones."""
    store = _new()
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        config = {"record.format": "kafka", "compression.type": codec, "index.interval.bytes": 0}
        store.topics.create(codec, config=config)
        for turn in range(4):
            with store.producer() as plain:
                for number in range(6):
                    plain.send(codec, b"%d" % turn * 60, b"k%d" % number, headers=[("h", b"1")])
        assert store.maintenance.merge(codec)
    with TemporaryDirectory() as folder:
        shutil.copytree(BROKER / "hanging-0", f"{folder}/hanging-0", ignore=_older)
        store.kafka.import_topic("hanging", [f"{folder}/hanging-0"])
    files = files_of(store.storage)  # type: ignore[arg-type] # a HeapStorage
    notes = b"".join(data for name, data in files.items() if "/retired/" in name)
    # As vacuum leaves it: what nobody reads any more is not worth a mutation.
    return {name: data for name, data in files.items() if _stem(name) not in notes}


def _older(_: str, names: list[str]) -> list[str]:
    """All but the last segments of ``hanging``: an aborted transaction, and one that hangs."""
    return [name for name in names if name < "00000000000000000055"]


def _stem(name: str) -> bytes:
    return name.rpartition("/")[2].partition(".")[0].encode()


def columns() -> Files:
    """Batches of columns, packed or not, of topics with a schema and without, and their indexes."""
    store = _new()
    config: dict[str, object] = {"compression.type": "none", "index.interval.bytes": 0}
    store.topics.create("t", config=config)
    store.topics.create("zstd", config={"compression.type": "zstd"})
    typed = {"record.format": "columns", **config}
    store.topics.create("typed", schema=SCHEMA, key=["carrier"], config=typed)
    for turn in range(4):
        with store.producer() as plain:
            for topic in ("t", "zstd"):
                some = {"key": [b"k"] * 400, "value": [b"%d" % turn * 40] * 400}
                plain.send_batch(topic, pa.table(some))
                plain.send(topic, b"small")
            plain.send_batch("typed", flights(turn))
    return files_of(store.storage)  # type: ignore[arg-type] # a HeapStorage


def parquet() -> Files:
    """Segments that are Parquet files, some of which another program has written."""
    store = _new()
    config: dict[str, object] = {"cleanup.policy": "compact"}
    store.topics.create("typed", schema=SCHEMA, key=["carrier"], config=config)
    store.topics.create("bytes", config={"record.format": "parquet", "compression.type": "snappy"})
    for turn in range(3):
        with store.producer() as plain:
            plain.send_batch("typed", flights(turn))
            plain.send("bytes", b"value%d" % turn, b"key", headers=[("h", b"1")])
    store.maintenance.compact("typed")
    wider = SCHEMA.set(1, pa.field("flight", pa.int64())).append(pa.field("gate", "int8"))
    store.topics.alter("typed", schema=wider)
    for turn in range(3):
        with store.producer() as plain:
            plain.send_batch("typed", flights(turn).select(["carrier", "flight"]))
    files = files_of(store.storage)  # type: ignore[arg-type] # a HeapStorage
    foreign: list[dict[str, object]] = [
        {"use_dictionary": True, "compression": "none", "data_page_version": "2.0"},
        {"use_dictionary": False, "compression": "zstd"},
        {"use_dictionary": True, "compression": "gzip"},
    ]
    names = [name for name in sorted(files) if name.endswith(".parquet")]
    for number, name in enumerate(names):
        if number % 4 == 3:
            continue
        sink = pa.BufferOutputStream()
        # Without checksums of pages, and so of row groups: whatever lies there is decoded.
        table = pq.read_table(pa.BufferReader(files[name])).replace_schema_metadata(None)
        pq.write_table(table, sink, **foreign[number % 4])
        files |= repaired(files, name, sink.getvalue().to_pybytes())
    return files


def flights(turn: int) -> pa.Table:
    rows = [
        {
            "carrier": f"c{number}",
            "flight": turn,
            "at": None if number % 3 else BEGAN_MS + turn,
            "price": None if number % 2 else number,
            "legs": [{"to": "X"}, None] if turn % 2 else None,
        }
        for number in range(turn, turn + 20)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def standby() -> Files:
    """A standby, after two rounds."""
    target = HeapStorage()
    source = attach(storage_of(logs()), clock=VirtualClock(BEGAN_MS, 2))
    standby = Follower(source, target)
    standby.follow()
    with source.producer() as plain:
        plain.send("t", b"second round")
    standby.follow()
    return {f"source/{name}": data for name, data in files_of(source.storage).items()} | {  # type: ignore[arg-type]
        f"standby/{name}": data for name, data in files_of(target).items()
    }


def replicas() -> Files:
    """Two roots and a controller, in fsspec's memory, and a root that is out."""
    with patch.multiple("txnlog.replication.roots.find_replicas", probe=lambda _: None):
        store = open_replicas(
            ["memory://mutated/a", "memory://mutated/b"],
            controller="memory://mutated/control",
            create=True,
            clock=VirtualClock(BEGAN_MS),
        ).store
    store.topics.create("t")
    with store.producer() as plain:
        plain.send("t", b"one")
    taken = open_replicas("memory://mutated/control", clock=VirtualClock(BEGAN_MS, 2))
    taken.remove("r1")
    with store.producer() as plain:
        plain.send("t", b"two")
    files = {name: file.getvalue() for name, file in MemoryFileSystem.store.items()}
    MemoryFileSystem.store.clear()
    return {name: data for name, data in files.items() if name.startswith("/mutated/")}


def kafka_folders() -> Files:
    """Partition folders of a broker, of the newest format and of the oldest ones."""
    return {
        f"/{path.relative_to(BROKER.parent).as_posix()}": path.read_bytes()
        for folder in ("hanging-0", "mixed-0")
        for path in (BROKER / folder).iterdir()
        if folder == "mixed-0" or path.name not in _older("", [path.name])
    }


WORLDS: dict[str, Callable[[], Files]] = {
    "logs": logs,
    "settled": settled,
    "rows": rows,
    "indexed": indexed,
    "columns": columns,
    "parquet": parquet,
    "standby": standby,
    "replicas": replicas,
    "kafka_folders": kafka_folders,
}
