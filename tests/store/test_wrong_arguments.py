"""Every argument of the public classes, of every wrong type: an error of our own, and no other."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.wrong_values import call_with_texts, call_wrongly, no_function
from txnlog import ChangeFeed, Consumer, Producer, Scan, Snapshot, Store, TopicPartition
from txnlog.admin.found import Found
from txnlog.admin.groups import GroupAdmin
from txnlog.admin.kafka import KafkaAdmin
from txnlog.admin.maintenance_admin import MaintenanceAdmin
from txnlog.admin.topics import TopicAdmin
from txnlog.admin.transactions import TransactionAdmin
from txnlog.arguments import names_wrong_arguments
from txnlog.errors import InvalidOption
from txnlog.schemas import SchemaAdmin
from txnlog.store import attach
from txnlog.testing import HeapStorage, VirtualClock

WHERE = TopicPartition("t", 0)
ROWS = pa.schema([("id", pa.int64()), ("v", pa.string())])


PRODUCER = {
    "transactional_id": None,
    "transaction_timeout_ms": 60_000,
    "buffer_memory_bytes": None,
    "compression_type": None,
    "compression_level": None,
    "partitioner": "murmur2",
    "key_serializer": None,
    "value_serializer": None,
    "linger_ms": None,
    "acks": "all",
    "delivery_timeout_ms": 120_000,
    "retry_backoff_ms": 100,
    "retry_backoff_max_ms": 1000,
}
CONSUMER = {
    "pattern": "t",
    "group_id": None,
    "isolation_level": "read_committed",
    "auto_offset_reset": "latest",
    "enable_auto_commit": False,
    "max_poll_records": 500,
    "stop_at_end": False,
    "on_corrupt": "raise",
    "as_json": False,
    "key_deserializer": None,
    "value_deserializer": None,
    "config": None,
}
SCAN: dict[str, object] = {
    "topic": "t",
    "starting_offsets": None,
    "ending_offsets": None,
    "columns": None,
}
SCAN |= {"filter": None, "latest": False}
SEND = {"key": None, "partition": None, "timestamp_ms": None, "headers": None, "on_delivery": None}
SCHEMA = {"subject": "s", "text": '"string"', "schema_type": "AVRO", "references": ()}
ALTER = {"partitions": None, "config": None, "defaults": None, "dry_run": True}
ABORT = {"number": 1, "force": False, "dry_run": True}
CREATE = {**ALTER, "replication_factor": None}
RESET = {"group_id": "g", "topics": ["t"], "metadata": "", "force": False, "dry_run": True}
EXAMINE = {"with_contents": False, "orphan_age_ms": None}
FILES = {"storage_options": None, "progress": None}
EXPORT = {"keep_offsets": False, "compression_type": None, **FILES}
CHANGES = {"until": None, "columns": None, "filter": None}

Call = tuple[Callable[..., Any], Mapping[str, object]]
"""A method, and arguments with which it can be called; those of ``*names`` under ``*``."""
CALLS: list[Call] = [
    (Store.changes, {"topic": "t", "since": "earliest", "pre_images": False, **CHANGES}),
    (Store.changes, {"topic": "p", "since": "earliest", "pre_images": True, **CHANGES}),
    (Store.consumer, CONSUMER),
    (Store.consumer, {"*": "t"}),
    (Store.examine, {"topics": ["t"], "with_probe": False, **EXAMINE}),
    (Store.maintain, {"topics": "t", "dry_run": True, "orphan_age_ms": None, "publish": ()}),
    (Store.producer, PRODUCER),
    (Store.scan, {**SCAN, "isolation_level": "read_committed"}),
    (Store.snapshot, {"topics": ["t"], "isolation_level": "read_committed", "at": None}),
    (TopicAdmin.alter, {"topic": "p", "schema": ROWS, "rename": None, **ALTER}),
    (TopicAdmin.create, {"topic": "n", "schema": ROWS, "key": ["id"], **CREATE, "partitions": 1}),
    (TopicAdmin.delete, {"topic": "p", "topic_id": None}),
    (TopicAdmin.delete_records, {"offsets": {WHERE: 0}, "topic_ids": None}),
    (TopicAdmin.describe, {"topic": "t"}),
    (TopicAdmin.describe_all, {"patterns": ["t"]}),
    (TopicAdmin.disk_usage, {"topic": "t"}),
    (TopicAdmin.list, {"patterns": ["t"]}),
    (TopicAdmin.log, {"topic": "t", "first": 0}),
    (TopicAdmin.offsets, {"topics": ["t"], "at": "latest"}),
    (TopicAdmin.offsets, {"topics": ["t"], "timestamp_ms": 5}),
    (TopicAdmin.plan_delete_records, {"topics": [WHERE], "before": 0}),
    (TopicAdmin.plan_delete_records, {"topics": ["t"], "timestamp_ms": 0}),
    (TopicAdmin.segments, {"topic": "t", "partition": 0}),
    (GroupAdmin.delete, {"group_id": "g", "dry_run": True}),
    (GroupAdmin.delete_offsets, {"group_id": "g", "partitions": ["t"], "dry_run": True}),
    (GroupAdmin.describe, {"group_id": "g"}),
    (GroupAdmin.expire, {"older_than_ms": 0, "dry_run": True}),
    (GroupAdmin.history, {"group_id": "g", "newest": None}),
    (GroupAdmin.remove_members, {"group_id": "g", "members": None}),
    (GroupAdmin.reset_offsets, {"to": "earliest", **RESET}),
    (GroupAdmin.reset_offsets, {"timestamp_ms": 0, **RESET}),
    (GroupAdmin.reset_offsets, {"shift_by": 0, **RESET}),
    (GroupAdmin.reset_offsets, {"group_id": "g", "from_file": "offsets.csv", "dry_run": True}),
    (TransactionAdmin.abort, {"transactional_id": "i", "reason": "r", **ABORT}),
    (TransactionAdmin.describe, {"transactional_id": "i"}),
    (TransactionAdmin.end_hanging, {"dry_run": True}),
    (TransactionAdmin.expire_ids, {"older_than_ms": None, "dry_run": True}),
    (TransactionAdmin.history, {"transactional_id": "i", "newest": None}),
    (TransactionAdmin.list, {"states": None, "older_than_ms": None}),
    (TransactionAdmin.producers, {"topic": "t", "partition": 0}),
    (TransactionAdmin.stable_offsets, {"topic": "t", "partition": 0}),
    (MaintenanceAdmin.compact, {"topic": "c", "dry_run": True, "max_memory_bytes": None}),
    (MaintenanceAdmin.merge, {"topic": "t", "dry_run": True}),
    (MaintenanceAdmin.purge, {"topic": "p", "keys": [{"id": 1}], "dry_run": True}),
    (KafkaAdmin.export_topic, {"topic": "t", "directory": "new", "magic": 2, **EXPORT}),
    (KafkaAdmin.import_topic, {"topic": "c", "log_dirs": ["old/t-0"], "skip_corrupt": False}),
    (KafkaAdmin.import_topic, {"topic": "c", "log_dirs": ["old/t-0"], **FILES}),
    (SchemaAdmin.add, SCHEMA),
    (SchemaAdmin.by_id, {"schema_id": 1}),
    (SchemaAdmin.check, SCHEMA),
    (SchemaAdmin.compatibility, {"subject": None}),
    (SchemaAdmin.delete, {"subject": "d", "version": None, "permanent": False, "dry_run": True}),
    (SchemaAdmin.list, {"subject": None, "deleted": False}),
    (SchemaAdmin.set_compatibility, {"mode": "NONE", "subject": None}),
    (SchemaAdmin.version, {"subject": "d", "version": None}),
    (Snapshot.beginning_offsets, {"topic": "t"}),
    (Snapshot.check_partition, {"where": WHERE}),
    (Snapshot.dataset, {"topic": "p"}),
    (Snapshot.end_offsets, {"topic": "t"}),
    (Snapshot.offset_for_time, {"where": WHERE, "timestamp_ms": 0}),
    (Snapshot.partitions, {"topic": "t"}),
    (Snapshot.scan, {**SCAN, "as_json": False}),
    (Snapshot.view, {"topic": "t"}),
    (Producer.begin_transaction, {"application_id": "a", "version": 1}),
    (Producer.committed_version, {"application_id": "a"}),
    (Producer.close, {"flush": True}),
    (Producer.partitions_for, {"topic": "t"}),
    (Producer.send, {"topic": "t", "value": b"v", **SEND}),
    (Producer.send, {"topic": "p", "value": {"id": 1, "v": "x"}, **SEND}),
    (Producer.send_batch, {"topic": "t", "batch": pa.table({"value": [b"x"]}), "partition": 0}),
    (Producer.send_batch, {"topic": "p", "batch": pa.table({"id": [1]}), "partition": 0}),
    (Producer.send_offsets_to_transaction, {"offsets": {WHERE: 0}, "group": "g"}),
    (Consumer.assign, {"partitions": [WHERE]}),
    (Consumer.beginning_offsets, {"partitions": [WHERE]}),
    (Consumer.commit, {"offsets": {WHERE: 0}, "metadata": ""}),
    (Consumer.commit_async, {"offsets": {WHERE: 0}, "metadata": "", "callback": None}),
    (Consumer.committed, {"where": WHERE}),
    (Consumer.end_offsets, {"partitions": [WHERE]}),
    (Consumer.highwater, {"where": WHERE}),
    (Consumer.offsets_for_times, {"timestamps_ms": {WHERE: 0}}),
    (Consumer.pause, {"*": WHERE}),
    (Consumer.poll, {"timeout_ms": 0, "max_records": None}),
    (Consumer.poll_batches, {"timeout_ms": 0}),
    (Consumer.position, {"where": WHERE}),
    (Consumer.resume, {"*": WHERE}),
    (Consumer.seek, {"where": WHERE, "offset": 0}),
    (Consumer.seek_to_beginning, {"*": WHERE}),
    (Consumer.seek_to_end, {"*": WHERE}),
    (Consumer.subscribe, {"topics": ["t"], "listener": None}),
    (Consumer.subscribe, {"pattern": "t"}),
    (Scan.count, {"report": None}),
    (Scan.head, {"count": 1, "report": None}),
    (Scan.sound_batches, {"report": no_function, "skip_damaged": False}),
    (Scan.tail, {"count": 1, "report": None}),
    (Scan.to_duckdb, {"connection": None}),
    (Scan.to_file, {"path": "new.csv", "file_format": "csv", "encoding": "text"}),
    (Scan.to_file, {"path": "new.csv", "escape_formulas": False, "progress": no_function}),
]
CLASSES = (
    *(Store, TopicAdmin, GroupAdmin, TransactionAdmin, MaintenanceAdmin, SchemaAdmin, KafkaAdmin),
    *(Snapshot, Producer, Consumer, Scan, ChangeFeed),
)


class World:
    """A store in which each call of the table can be made."""

    def __init__(self) -> None:
        storage, clock = HeapStorage(), VirtualClock(1_700_000_000_000)
        storage.time_ms = lambda: clock.time_ms
        self.store = store = attach(storage, create=True, clock=clock)
        store.topics.create("t", partitions=2)
        store.topics.create("c", config={"cleanup.policy": "compact"})
        store.topics.create("p", schema=ROWS, key=["id"])
        store.schemas.add("d", '"long"')
        with store.producer() as producer:
            producer.send("t", b"v", key=b"k")
            producer.send("p", {"id": 1, "v": "x"})
        with store.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.poll()
            consumer.commit()
        self.waiting = store.producer(transactional_id="i")
        self.waiting.init_transactions()
        self.waiting.begin_transaction()
        self.waiting.send("t", b"z")
        self.waiting.flush()
        self.sending = store.producer()
        self.transactional = store.producer(transactional_id="q")
        self.consumer = store.consumer(group_id="h", auto_offset_reset="earliest")

    def object_for(self, method: Callable[..., Any]) -> object:
        """What the method is called on, in a state in which it can be."""
        store, (kind, _, name) = self.store, method.__qualname__.partition(".")
        if kind == "Producer":
            return self._producer(name)
        if kind == "Consumer":
            self.consumer.unsubscribe()
            if name != "subscribe":
                self.consumer.assign([WHERE])
            return self.consumer
        made: dict[str, Callable[[], object]] = {
            "Store": lambda: store,
            "TopicAdmin": lambda: store.topics,
            "GroupAdmin": lambda: store.groups,
            "TransactionAdmin": lambda: store.transactions,
            "MaintenanceAdmin": lambda: store.maintenance,
            "KafkaAdmin": lambda: store.kafka,
            "SchemaAdmin": lambda: store.schemas,
            "Snapshot": lambda: store.snapshot(["t", "p"]),
        }
        return made.get(kind, lambda: store.scan("t"))()

    def _producer(self, name: str) -> Producer:
        if name in ("close", "send", "send_batch", "partitions_for"):
            return self.store.producer()
        producer = self.transactional
        producer.init_transactions()
        if name == "send_offsets_to_transaction":
            producer.begin_transaction()
        return producer


def use(world: World, method: Callable[..., Any], arguments: Mapping[str, object]) -> object:
    """Make a call, and use what it returns; what a transaction holds is dropped."""
    of = world.object_for(method)
    names = {name: value for name, value in arguments.items() if name != "*"}
    star = [arguments["*"]] if "*" in arguments else []
    found = method(of, *star, **names)
    if isinstance(found, (Iterator, Found)):
        return list(found)
    if isinstance(found, Scan):
        return found.to_arrow()
    if isinstance(found, Snapshot):
        return found.token()
    if isinstance(found, Consumer) and found.subscription():
        found.poll()
    elif isinstance(found, Producer) and found is not of:
        found.send("t", b"v")
        found.close()
    if isinstance(of, Producer) and method in (Producer.send, Producer.send_batch):
        of.flush()
    return found


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        pytest.param(*call, id=f"{call[0].__qualname__}-{number}")
        for number, call in enumerate(CALLS)
    ],
)
def test_a_wrong_argument_is_an_error_of_our_own(
    method: Callable[..., Any],
    arguments: Mapping[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "offsets.csv").write_text("t,0,0\n")
    World().store.kafka.export_topic("t", str(tmp_path / "old"))
    use(World(), method, arguments)  # as it stands it is right
    world = World()

    def call(**given: object) -> None:
        (tmp_path / "new.csv").unlink(missing_ok=True)
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        use(world, method, given)

    call_wrongly(call, arguments)


@pytest.mark.parametrize(
    ("method", "arguments", "name"),
    [
        pytest.param(*call, name, id=f"{call[0].__qualname__}-{number}-{name}")
        for number, call in enumerate(CALLS)
        for name in call[1]
        if name != "*"
        and re.search(
            r"\b(Sequence|Iterable|Collection)\[",
            inspect.signature(call[0]).parameters[name].annotation,
        )
    ],
)
def test_a_text_is_not_taken_for_its_letters(
    method: Callable[..., Any],
    arguments: Mapping[str, object],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    call_with_texts(lambda given: use(World(), method, {**arguments, name: given}))


def test_the_table_is_of_all_methods() -> None:
    """Those that a class inherits too, under the name of the class where they are."""
    tested = {(method.__qualname__, name) for method, names in CALLS for name in names}
    found = {
        (method.__qualname__, "*" if one.kind is one.VAR_POSITIONAL else one.name)
        for cls in CLASSES
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
        for one in [*inspect.signature(method).parameters.values()][1:]
        if one.name != "unnamed"  # there to be refused
    }
    assert found - tested == tested - found == set()


@pytest.mark.parametrize("expire", [GroupAdmin.expire, TransactionAdmin.expire_ids])
def test_nothing_is_idle_for_less_than_no_time(expire: Callable[..., list[str]]) -> None:
    of = World().object_for(expire)
    assert expire(of, older_than_ms=0, dry_run=True) == []
    with pytest.raises(InvalidOption, match="older_than_ms must be a whole number of at least 0"):
        expire(of, older_than_ms=-5)


@names_wrong_arguments("often")
class Example:
    """A class with faults of its own."""

    def fails(self, number: int, texts: Mapping[str, list[float]] | None = None) -> int:
        raise TypeError(f"not of an argument: {number}, {texts}")

    def each(self, number: int) -> Iterator[int]:
        yield from range(number)

    def places(self, where: list[TopicPartition]) -> int:
        raise LookupError(where)

    def often(self, number: int) -> int:
        return number + 1


def test_a_fault_of_our_own_stays_what_it_is() -> None:
    """And what is wrong within an argument is found."""
    example = Example()
    right: tuple[Any, ...] = (None, {}, {"a": [1.5, 2]})
    for texts in right:
        with pytest.raises(TypeError, match="not of an argument"):
            example.fails(1, texts)
    refused: tuple[tuple[int, Any, str], ...] = (
        (True, None, "argument number must be int, not True"),
        (1, {"a": ["x"]}, r"argument texts must be Mapping\[str, list\[float\]\] \| None, not"),
        (1, {"a": "xy"}, "argument texts"),
        (1, {1: []}, "argument texts"),
    )
    for number, texts, wrong_one in refused:
        with pytest.raises(InvalidOption, match=rf"Example\.fails\(\): {wrong_one}"):
            example.fails(number, texts)
    with pytest.raises(LookupError, match="partition=0"):
        example.places([WHERE])
    wrong_place: Any = [TopicPartition("t", "0")]  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"not list\[TopicPartition\(str, str\)\]"):
        example.places(wrong_place)
    assert [*example.each(3)] == [0, 1, 2]
    with pytest.raises(InvalidOption, match=r"each\(\): argument number must be int, not str"):
        [*example.each("x")]  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="concatenate"):
        example.often("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required"):
        example.fails()  # type: ignore[call-arg]
