"""The topic ``_schemas``: ids, versions, compatibility, and writers that meet."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest

import txnlog.schemas
from txnlog.errors import InvalidOption, InvalidRecord, InvalidSchema, UnknownSchema
from txnlog.schemas import TOPIC, SchemaAdmin
from txnlog.snapshot import Snapshot
from txnlog.store import Store, attach
from txnlog.testing import Process, Simulation, VirtualClock, preemptions, random_choice
from txnlog.values import SchemaReference
from txnlog.values.compatibility import check_mode
from txnlog.values.schemas import RegisteredSchema, with_references


def schema(**fields: Any) -> str:
    """A record of ints; a field's value is its default."""
    made = [
        {"name": name, "type": "int"} | ({} if value is None else {"default": value})
        for name, value in fields.items()
    ]
    return json.dumps({"type": "record", "name": "R", "fields": made})


def test_ids_and_versions(store: Store) -> None:
    """As Confluent's registry gives them: one id for the same schema, whoever has it."""
    add = store.schemas.add
    first = add("a", schema(x=None))
    again = add("a", json.dumps(json.loads(schema(x=None)), indent=3))
    second = add("a", schema(x=None, y=1))
    other = add("b", schema(x=None, y=1))
    assert [(one.id, one.version) for one in (first, again, second, other)] == [
        (1, 1),
        (1, 1),
        (2, 2),
        (2, 1),
    ]
    assert [(one.subject, one.version) for one in store.schemas.list()] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
    ]
    assert store.schemas.version("a").id == 2
    assert store.schemas.version("a", 1).text == schema(x=None)
    assert pickle.loads(pickle.dumps(store.schemas)).by_id(2).text == schema(x=None, y=1)
    for missing in (lambda: store.schemas.by_id(3), lambda: store.schemas.list("c")):
        with pytest.raises(UnknownSchema):
            missing()
    # What is there already costs no write.
    end = store.snapshot(TOPIC).end_offsets(TOPIC)
    add("a", schema(x=None))
    assert store.snapshot(TOPIC).end_offsets(TOPIC) == end


def test_what_is_deleted_can_be_read_until_it_is_gone_for_good(store: Store) -> None:
    """No version any more, but an id; then neither, and the id is not given again."""
    schemas = store.schemas
    schemas.add("a", schema(x=None))
    schemas.add("a", schema(x=None, y=1))
    schemas.add("b", schema(x=None))
    assert [one.version for one in schemas.delete("a", 2, dry_run=True)] == [2]
    assert len(schemas.list("a")) == 2
    with pytest.raises(InvalidOption, match=r"versions \[1, 2\] of 'a' are not deleted yet"):
        schemas.delete("a", permanent=True)
    assert [(one.version, one.id) for one in schemas.delete("a")] == [(1, 1), (2, 2)]
    assert [(one.subject, one.version) for one in schemas.list()] == [("b", 1)]
    assert [one.version for one in schemas.list("a", deleted=True)] == [1, 2]
    assert schemas.list("b", deleted=True) == []
    assert schemas.by_id(2).text == schema(x=None, y=1)
    assert schemas.version("a", 2).id == 2
    for missing in (
        lambda: schemas.version("a"),
        lambda: schemas.list("a"),
        lambda: schemas.delete("a"),
        lambda: schemas.delete("a", 2),
        lambda: schemas.delete("c"),
        lambda: schemas.delete("b", 7),
        lambda: schemas.delete("b", 7, permanent=True),
    ):
        with pytest.raises(UnknownSchema):
            missing()
    # One that comes back has its id, and a version of its own.
    back = schemas.add("a", schema(x=None, y=1))
    assert (back.id, back.version) == (2, 3)
    schemas.delete("a", 3)
    assert [one.version for one in schemas.delete("a", permanent=True)] == [1, 2, 3]
    assert schemas.by_id(1).subject == "b"  # it has the schema too
    # Compaction forgets the records, and their tombstones.
    store.topics.alter(TOPIC, config={"delete.retention.ms": "0"})
    for mode in ("FULL", "NONE"):
        store.maintenance.compact(TOPIC)
        schemas.set_compatibility(mode)
    keys = store.scan(TOPIC, columns=["key"]).to_arrow()["key"].to_pylist()
    assert [json.loads(key).get("version") for key in keys].count(1) == 1  # that of b
    for admin in (schemas, pickle.loads(pickle.dumps(schemas))):
        with pytest.raises(UnknownSchema, match="no schema with id 2"):
            admin.by_id(2)
    assert schemas.list(deleted=True) == []
    assert schemas.add("c", schema(z=None)).id == 3


def test_what_others_refer_to_is_not_deleted(store: Store) -> None:
    """First what refers to it; what is deleted finds what it needs by its version."""
    schemas = store.schemas
    schemas.add("item", json.dumps({"type": "record", "name": "I", "fields": []}))
    order = {"type": "record", "name": "O", "fields": [{"name": "i", "type": "I"}]}
    schemas.add("order", json.dumps(order), references=[SchemaReference("I", "item", 1)])
    with pytest.raises(InvalidOption, match="version 1 of 'order' refers to version 1 of 'item'"):
        schemas.delete("item")
    schemas.delete("order")
    schemas.delete("item")
    assert with_references(schemas, schemas.by_id(2))[0][0] == "I"
    with pytest.raises(InvalidOption, match="'order' refers"):
        schemas.delete("item", 1, permanent=True)
    schemas.delete("order", permanent=True)
    schemas.delete("item", permanent=True)
    assert schemas.list(deleted=True) == []


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_is_gone_is_referred_to_by_nothing_new(
    store: Store, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Though whoever registers the schema has read it, and somebody else has deleted it."""
    schemas, other = store.schemas, attach(store.storage, clock=VirtualClock(seed=9)).schemas
    schemas.add("item", json.dumps({"type": "record", "name": "I", "fields": []}))

    def delete_for_good(*_: object) -> None:
        for permanent in (False, True):
            other.delete("item", permanent=permanent)

    if when == "before":
        schemas.version("item", 1)
        delete_for_good()
    else:
        monkeypatch.setattr("txnlog.schemas.SchemaAdmin._make_topic", lambda _: None)
        changes = SchemaAdmin._change

        def change(admin: SchemaAdmin, decide: Any) -> Any:
            if admin is schemas:
                delete_for_good()
            return changes(admin, decide)

        monkeypatch.setattr("txnlog.schemas.SchemaAdmin._change", change)
    order = {"type": "record", "name": "O", "fields": [{"name": "i", "type": "I"}]}
    with pytest.raises(UnknownSchema, match="refers to one"):
        schemas.add("order", json.dumps(order), references=[SchemaReference("I", "item", 1)])
    with pytest.raises(UnknownSchema, match="no subject 'order'"):
        other.version("order")


def test_what_has_not_changed_is_read_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ids are unknown; what somebody else adds is found at once."""
    schemas, other = store.schemas, attach(store.storage, clock=VirtualClock(seed=9)).schemas
    other.add("a", schema(x=None))
    reads = []

    def state_in(snapshot: Snapshot) -> Any:
        reads.append(snapshot)
        return read(snapshot)

    read = txnlog.schemas._state_in
    monkeypatch.setattr("txnlog.schemas._state_in", state_in)
    for schema_id in range(2, 30):
        with pytest.raises(UnknownSchema):
            schemas.by_id(schema_id)
    assert len(reads) == 1
    other.add("a", schema(x=None, y=1))
    assert schemas.by_id(2).version == 2
    store.topics.delete(TOPIC)
    other.add("b", schema(x=None))
    other.add("b", schema(x=None, z=1))
    assert schemas.version("b", 2).text == schema(x=None, z=1)


MODES: Mapping[str, tuple[bool, bool, bool]] = {
    # a field with a default more; one without more; one without a default less
    "BACKWARD": (True, False, True),
    "FORWARD": (True, True, False),
    "FULL": (True, False, False),
    "NONE": (True, True, True),
}


@pytest.mark.parametrize("mode", MODES)
def test_compatibility_with_the_last_version(store: Store, mode: str) -> None:
    """What each mode takes, as the registries say it."""
    store.schemas.set_compatibility(mode, "s")  # type: ignore[arg-type]
    assert store.schemas.compatibility("s") == mode
    assert store.schemas.compatibility("other") == "BACKWARD"
    store.schemas.add("s", schema(x=None, y=None))
    changed = (schema(x=None, y=None, z=1), schema(x=None, y=None, z=None), schema(x=None))
    taken = tuple(not store.schemas.check("s", text) for text in changed)
    assert taken == MODES[mode]
    for text, is_taken in zip(changed, taken, strict=True):
        if not is_taken:
            with pytest.raises(InvalidSchema, match=f"whose compatibility is {mode}"):
                store.schemas.add("s", text)


def test_transitive_modes_look_at_all_versions(store: Store) -> None:
    """A field that one version lacks may come back without a default for the last alone."""
    store.schemas.set_compatibility("NONE")
    assert store.schemas.compatibility("s") == "NONE"
    for text in (schema(y=None), schema(x=None, y=None)):
        store.schemas.add("s", text)
    back = schema(x=None)
    store.schemas.set_compatibility("BACKWARD", "s")
    assert store.schemas.check("s", back) == []
    store.schemas.set_compatibility("BACKWARD_TRANSITIVE", "s")
    assert len(store.schemas.check("s", back)) == 1
    with pytest.raises(InvalidOption, match="one of BACKWARD"):
        store.schemas.set_compatibility("SIDEWAYS", "s")  # type: ignore[arg-type]


def test_what_a_registry_of_kafkas_has_written(store: Store) -> None:
    """Its kinds of records, soft deletes and tombstones too; what is none of it is named."""
    store.topics.create(TOPIC, config={"cleanup.policy": "compact"})
    text = schema(x=None)
    key = '{"keytype":"SCHEMA","subject":"%s","version":%d,"magic":1}'
    value = {
        "subject": "s",
        "version": 1,
        "id": 4,
        "md5Hash": "x",
        "schema": text,
        "deleted": False,
    }
    records = [
        ('{"keytype":"NOOP","magic":0}', None),
        ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"FULL"}'),
        ('{"keytype":"MODE","subject":"s","magic":0}', '{"mode":"READONLY"}'),
        (key % ("s", 1), json.dumps(value)),
        (key % ("s", 2), json.dumps({**value, "version": 2, "id": 5, "schema": schema(y=None)})),
        (key % ("s", 2), json.dumps({**value, "version": 2, "id": 5, "deleted": True})),
        (key % ("gone", 1), json.dumps({**value, "subject": "gone", "id": 6})),
        (
            '{"keytype":"DELETE_SUBJECT","subject":"gone","magic":0}',
            '{"subject":"gone","version":1}',
        ),
        (key % ("t", 1), json.dumps({**value, "subject": "t", "id": 7})),
        (key % ("t", 1), None),
    ]
    with store.producer() as producer:
        for one, other in records:
            producer.send(TOPIC, other, key=one)
    assert [(one.subject, one.version, one.id) for one in store.schemas.list()] == [("s", 1, 4)]
    assert store.schemas.compatibility() == "FULL"
    assert store.schemas.by_id(6).text == text  # values that carry it can still be read
    added = store.schemas.add("s", schema(x=None, z=1))
    assert (added.id, added.version) == (8, 3)  # neither is given twice
    unknown = '{"keytype":"CONFIG","subject":"s"}', '{"compatibilityLevel":"WHAT"}'
    keys = ("[]", '{"keytype":"SCHEMA","subject":7}', "[" * 100_000)
    for bad, content in (*((one, "{}") for one in keys), unknown):
        with store.producer() as producer:
            producer.send(TOPIC, content, key=bad)
        with pytest.raises(InvalidRecord, match=f"{TOPIC}:0 has a record at offset"):
            store.schemas.list()
        store.topics.delete(TOPIC)
        store.topics.create(TOPIC)


def other_registry(store: Store, one: RegisteredSchema, chooser: random.Random) -> None:
    """Another registry writes a version: its keys have their fields in any order."""
    key = {"keytype": "SCHEMA", "subject": one.subject, "version": one.version, "magic": 1}
    fields = chooser.sample([*key.items()], len(key))
    value: dict[str, Any] = {"subject": one.subject, "version": one.version, "id": one.id}
    value |= {"schema": one.text, "references": [*map(asdict, one.references)]}
    with store.producer() as producer:
        producer.send(TOPIC, json.dumps(value), key=json.dumps(dict(fields)))


RECURSIVE = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "next", "type": ["null", "R"], "default": None}],
}
GONE = (SchemaReference("I", "gone", 1),)
UNREADABLE: dict[str, tuple[str, tuple[SchemaReference, ...], str]] = {
    "a type of itself": (json.dumps(RECURSIVE), (), "type 'R' contains itself"),
    "no schema": ("{", (), "it is not a schema of Avro"),
    "a reference that is gone": (schema(x=None), GONE, "schema 2 refers to one"),
}
"""Versions that other registries take, and why they have no columns."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_version_that_cannot_be_compared_is_named(store: Store, name: str, mode: str) -> None:
    """It is that version that is at fault, not the one which is to follow it."""
    text, references, reason = UNREADABLE[name]
    store.topics.create(TOPIC, config={"cleanup.policy": "compact"})
    for version, (one, used) in enumerate(((schema(x=None), ()), (text, references)), 1):
        other_registry(
            store,
            RegisteredSchema(version, "AVRO", one, used, "s", version),
            random.Random(version),
        )
    store.schemas.set_compatibility(check_mode(mode))
    found = store.schemas.check("s", schema(x=None, z=1))
    if mode == "NONE":
        assert found == []
        return
    (why,) = found
    assert why.startswith(f"version 2 cannot be compared: {reason}")
    with pytest.raises(InvalidSchema, match=f"is {mode}: version 2 cannot be compared"):
        store.schemas.add("s", schema(x=None, z=1))


@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 20), marks=pytest.mark.more)], ids=["few", "many"]
)
def test_compaction_changes_no_schema(store: Store, seeds: range) -> None:
    """Random lives, among them versions that other registries have written, or write again."""
    schemas, texts = store.schemas, [schema(x=number) for number in range(8)]
    for seed in seeds:
        chooser = random.Random(seed)
        schemas.set_compatibility("NONE")
        store.topics.alter(TOPIC, config={"delete.retention.ms": "0"})
        for step in range(40):
            chance, live = chooser.random(), schemas.list()
            gone = schemas.list(deleted=True)
            if chance < 0.4:
                schemas.add(chooser.choice("abc"), chooser.choice(texts))
            elif chance < 0.5 and live:
                other_registry(store, chooser.choice(live), chooser)
            elif chance < 0.65 and live:
                one = chooser.choice(live)
                schemas.delete(str(one.subject), one.version)
            elif chance < 0.8 and gone:
                one = chooser.choice(gone)
                schemas.delete(str(one.subject), one.version, permanent=True)
            before = schemas.list(), schemas.list(deleted=True)
            store.maintenance.compact(TOPIC)
            assert (schemas.list(), schemas.list(deleted=True)) == before, (seed, step)
        store.topics.delete(TOPIC)


def test_a_topic_of_another_make_is_refused(store: Store) -> None:
    """Several partitions have no order in which to read them."""
    store.topics.create(TOPIC, partitions=2)
    with pytest.raises(InvalidOption, match="more than one partition"):
        store.schemas.list()


# -- writers that meet -----------------------------------------------------------------------------

SAME, ONE, TWO = schema(x=None), schema(x=None, one=1), schema(x=None, two=2)


def race(simulation: Simulation, results: dict[str, tuple[int, int | None]]) -> int:
    """Two processes: each adds a schema of its own and the same one to subject ``s``."""

    def body(name: str, own: str) -> Any:
        def add(process: Process) -> None:
            schemas = process.store().schemas
            for label, text in ((name, own), (f"{name} same", SAME)):
                added = schemas.add("s", text)
                results[label] = (added.id, added.version)

        return add

    simulation.spawn("one", body("one", ONE))
    simulation.spawn("two", body("two", TWO))
    return 0


def judge(simulation: Simulation, results: dict[str, tuple[int, int | None]], told: object) -> None:
    """Three schemas with three ids and three versions, and each process was told the truth."""
    found = simulation.store().schemas.list("s")
    assert sorted(one.text for one in found) == sorted([SAME, ONE, TWO]), told
    assert [one.version for one in found] == [1, 2, 3], told
    assert len({one.id for one in found}) == 3, told
    by_text = {one.text: (one.id, one.version) for one in found}
    assert results == {
        "one": by_text[ONE],
        "two": by_text[TWO],
        "one same": by_text[SAME],
        "two same": by_text[SAME],
    }, told


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_two_that_add_at_the_same_time(stride: int) -> None:
    """Request by request, with each place to change from one to the other; by seed besides."""
    simulation = Simulation(5)
    simulation.store()
    results: dict[str, tuple[int, int | None]] = {}
    race(simulation, results)
    simulation.run(preemptions([]))
    judge(simulation, results, "one after the other")
    length = len(simulation.order)
    assert length > 40
    schedules: list[tuple[int, ...]] = [(first,) for first in range(0, length, stride)]
    schedules += list(itertools.combinations(range(0, length, 4 * stride), 2))[::stride]
    for switches in schedules:
        simulation, results = Simulation(5), {}
        simulation.store()
        race(simulation, results)
        simulation.run(preemptions(switches))
        judge(simulation, results, switches)
    for seed in range(0, 40, stride):
        simulation, results = Simulation(seed), {}
        simulation.store()
        race(simulation, results)
        simulation.run(random_choice(seed))
        judge(simulation, results, seed)
