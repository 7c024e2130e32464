"""A schema changes while others write under the one before: every order with one preemption.

Each row is there once it was acknowledged, and is read under the schema that the reader has; what
was refused is not there at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from txnlog.errors import InvalidRecord, InvalidSchema
from txnlog.testing import HeapStorage, Process, Simulation, preemptions

pytestmark = pytest.mark.rule("L16")

Body = Callable[[Process], None]
BEFORE = pa.schema([("id", pa.int32()), ("a", pa.string()), ("gone", pa.int8())])
AFTER = pa.schema(
    [("b", pa.string()), ("id", pa.int64()), pa.field("more", pa.int8(), nullable=False)]
)


def typed_topic() -> HeapStorage:
    simulation = Simulation()
    simulation.store().topics.create("t", schema=BEFORE)
    assert isinstance(simulation.storage, HeapStorage)
    return simulation.storage


def orders(storage: HeapStorage, bodies: Callable[[], Mapping[str, Body]]) -> Iterator[Simulation]:
    """One process after the other, then switching at each request in turn."""
    length = 0
    step = -1
    while step < length:
        simulation = Simulation(storage=storage.copy())
        for name, body in bodies().items():
            simulation.spawn(name, body)
        simulation.run(preemptions([] if step < 0 else [step]))
        length = max(length, len(simulation.order))
        yield simulation
        step += 1


@pytest.mark.few(1)
@pytest.mark.parametrize("transactional_id", [None, "writer"])
def test_a_write_under_the_schema_before_is_read_whole(transactional_id: str | None) -> None:
    """Whether the producer looked before the change and placed behind it, or the other way."""
    sent: list[dict[str, Any]] = []
    refused: list[str] = []

    def write(process: Process) -> None:
        producer = process.store().producer(transactional_id=transactional_id)
        if transactional_id is not None:
            producer.init_transactions()
        for first in (1, 3):
            if transactional_id is not None:
                producer.begin_transaction()
            rows = [{"id": first + n, "a": f"row {first + n}", "gone": 1} for n in range(2)]
            try:
                producer.send_batch("t", pa.Table.from_pylist(rows, BEFORE))
            except InvalidRecord as error:
                refused.append(str(error))
                if transactional_id is not None:
                    producer.abort_transaction()
                continue
            if transactional_id is not None:
                producer.commit_transaction()
            else:
                producer.flush()
            sent.extend(rows)
        producer.close()

    def change(process: Process) -> None:
        process.store().topics.alter("t", schema=AFTER, rename={"a": "b"}, defaults={"more": 7})

    outcomes = set()
    for simulation in orders(typed_topic(), lambda: {"write": write, "change": change}):
        store = simulation.store()
        schema_before = [entry for entry in store.topics.log("t") if entry.content]
        kinds = [(entry.content or {})["kind"] for entry in schema_before]
        outcomes.add(tuple(kinds))
        wanted = [{"b": row["a"], "id": row["id"], "more": 7} for row in sent]
        assert store.scan("t").to_arrow().to_pylist() == wanted
        assert store.snapshot(["t"]).dataset("t").to_table().to_pylist() == wanted
        assert len(sent) + 2 * len(refused) == 4
        assert all("it is called 'b'" in reason for reason in refused)
        findings = {finding.state for finding in store.examine(with_contents=True)}
        assert findings <= {"ok", "note"}
        sent.clear()
        refused.clear()
    # The change came before, between and behind the appends.
    assert {kinds.index("altered") for kinds in outcomes} == {1, 2, 3}


def test_of_two_changes_each_follows_from_the_other_or_is_refused() -> None:
    """Both add a column of one name, of other types; both drop the same one."""
    results: dict[str, str] = {}

    def change(name: str, kind: pa.DataType) -> Body:
        def body(process: Process) -> None:
            schema = pa.schema([("id", pa.int32()), ("a", pa.string()), ("new", kind)])
            try:
                process.store().topics.alter("t", schema=schema)
                results[name] = "done"
            except InvalidSchema as error:
                results[name] = str(error)

        return body

    bodies = {"text": change("text", pa.string()), "number": change("number", pa.int64())}
    for simulation in orders(typed_topic(), lambda: bodies):
        assert min(results.values(), key=len) == "done"
        assert "cannot become" in max(results.values(), key=len)
        schema = simulation.store().topics.describe("t").schema
        assert schema is not None
        assert schema.version == 1
        assert [field.name for field in schema.columns] == ["id", "a", "new"]
        results.clear()
