"""Views of the newest record of each key: their SQL, over rows that Iceberg numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.avro.file import AvroFile
from pyiceberg.table import Table

from tests.catalog.keyed import SCHEMA, fill, wanted
from tests.catalog.served import Served, served
from txnlog import TopicPartition
from txnlog.segments.schema_columns import id_of
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import Store, attach
from txnlog.tables import latest_view
from txnlog.tables.latest_view import ROWS_EACH
from txnlog.testing import VirtualClock

VIEWS = "/v1/namespaces/topics/views"


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Store:
    """A store with a topic ``f`` of three partitions, whose key has two columns."""
    (tmp_path / "store").mkdir()
    made = attach(LocalStorage(str(tmp_path / "store")), create=True, clock=clock)
    config = {"min.compaction.lag.ms": 0}
    made.topics.create("f", partitions=3, schema=SCHEMA, key=["ke`y", "part"], config=config)
    return made


@pytest.fixture
def catalog(store: Store) -> Iterator[Served]:
    with served(store) as opened:
        yield opened


def view_of(catalog: Served, topic: str = "f") -> dict[str, Any]:
    """The only version of a view, with its columns."""
    answer = catalog.ask(f"{VIEWS}/{topic}_latest")
    assert answer.status == 200
    found = answer.json["metadata"]
    [version], [schema] = found["versions"], found["schemas"]
    assert version["version-id"] == found["current-version-id"]
    assert version["schema-id"] == schema["schema-id"]
    return {**version, "columns": [field["name"] for field in schema["fields"]]}


def numbered_rows(table: Table) -> pa.Table:
    """The rows of a table with their numbers, as Iceberg's format 3 defines them."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    firsts: dict[str, int] = {}
    deleted: dict[str, set[int]] = {}
    with AvroFile[Any](table.io.new_input(snapshot.manifest_list)) as manifests:
        listed = [(one[0], one[3], one[15]) for one in manifests]
    for url, content, first in listed:
        # Without one Iceberg passes over those of the files.
        assert first == (None if content else 0)
        with AvroFile[Any](table.io.new_input(url)) as entries:
            for entry in entries:
                file = entry[4]
                if not content:
                    firsts[file[1]] = file[16]
                    continue
                for row in parquet.read_table(file[1].removeprefix("file://")).to_pylist():
                    deleted.setdefault(row["file_path"], set()).add(row["pos"])
    fields = table.schema().fields
    pieces = []
    for url, first in firsts.items():
        found = parquet.read_table(url.removeprefix("file://"))
        by_id = {id_of(field): field.name for field in found.schema}
        columns = {
            field.name: found[by_id[field.field_id]] for field in fields if field.name != "_headers"
        }
        numbers = range(first, first + len(found))
        gone = {first + position for position in deleted.get(url, ())}
        kept = pa.array([number not in gone for number in numbers])
        pieces.append(pa.table({**columns, "_row_id": [*numbers]}).filter(kept))
    rows = pa.concat_tables(pieces, promote_options="permissive")
    assert len({*rows["_row_id"].to_pylist()}) == len(rows)
    assert max(rows["_row_id"].to_pylist()) < table.metadata.next_row_id  # type: ignore[union-attr]
    return rows


def newest(catalog: Served, topic: str = "f") -> list[str]:
    """What the view's SQL finds, in DuckDB's words."""
    version = view_of(catalog, topic)
    [one] = version["representations"]
    assert (one["type"], one["dialect"]) == ("sql", "spark")
    table = catalog.catalog().load_table(("topics", topic))
    words = one["sql"].replace("``", "\0").replace("`", '"').replace("\0", "`")
    words = words.replace(" DIV ", " // ").replace('"_headers", ', "").replace(', "_headers"', "")
    connection = duckdb.connect()
    connection.register(topic, numbered_rows(table))
    found = pa.table(connection.sql(words).to_arrow_table())
    return sorted(map(repr, found.select(SCHEMA.names).to_pylist()))


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_view_has_the_newest_record_of_each_key(store: Store, catalog: Served, seed: int) -> None:
    """Of keys in several partitions too; compacted, merged, trimmed, with other names."""
    fill(store, seed)
    assert newest(catalog) == wanted(store) != []
    store.topics.alter("f", config={"cleanup.policy": "compact"})
    store.maintenance.compact("f")
    assert newest(catalog) == wanted(store)
    fill(store, seed + 10)
    store.topics.delete_records({TopicPartition("f", 0): 30, TopicPartition("f", 2): 11})
    assert newest(catalog) == wanted(store)
    store.topics.alter("f", config={"cleanup.policy": "delete"})
    store.maintenance.merge("f")
    assert newest(catalog) == wanted(store)
    fill(store, seed + 20)
    assert newest(catalog) == wanted(store)


def test_rows_that_are_copied_have_their_numbers(store: Store, catalog: Served) -> None:
    """Small commits of record.format=auto lie in no file of their own."""
    config = {"record.format": "auto"}
    store.topics.create("g", partitions=2, schema=SCHEMA, key=["part", "ke`y"], config=config)
    fill(store, 5, "g")
    assert newest(catalog, "g") == wanted(store, "g")
    store.topics.delete_records({TopicPartition("g", 0): 20})
    assert newest(catalog, "g") == wanted(store, "g")
    rows = numbered_rows(catalog.catalog().load_table("topics.g"))
    low = [number for number in rows["_row_id"].to_pylist() if number < ROWS_EACH]
    assert min(low) >= 20


def test_views_are_of_topics_with_a_key(store: Store, catalog: Served) -> None:
    """And of no others, nor where something else has the name or its columns have."""
    plain = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    store.topics.create("plain")
    store.topics.create("keyless", schema=plain)
    appended = {"message.timestamp.type": "LogAppendTime"}
    store.topics.create("one", schema=plain, key=["a"], config=appended)
    store.topics.create("two", partitions=2, schema=plain, key=["a"], config=appended)
    store.topics.create("both", schema=plain, key=["a"])
    store.topics.create("both_latest", schema=plain)
    for name in ("_Row_id", "_txnlog_newest", "a${b"):
        store.topics.create(
            f"x{len(name)}", schema=plain.append(pa.field(name, pa.int8())), key=["a"]
        )
    listed = catalog.ask(VIEWS).json["identifiers"]
    assert {one["name"] for one in listed} >= {"f_latest", "one_latest"}
    for topic in ("plain", "keyless", "two", "both", "x7", "x14", "x4", "none", "..", "f_latest"):
        answer = catalog.ask(f"{VIEWS}/{topic}_latest")
        assert answer.error == (404, "NoSuchViewException")
    assert catalog.ask(f"{VIEWS}/f").status == 404
    assert catalog.ask("/v1/namespaces/other/views/f_latest").status == 404
    assert catalog.ask(f"{VIEWS}/one_latest", "HEAD").status == 204
    assert catalog.ask(f"{VIEWS}/two_latest", "HEAD").status == 404
    assert view_of(catalog)["columns"] == [*SCHEMA.names, "_timestamp", "_headers"]
    assert catalog.ask(f"{VIEWS}/f_latest", "DELETE").error[0] == 406
    # A table of the same name would be another one.
    assert catalog.ask("/v1/namespaces/topics/tables/f_latest").status == 404


@pytest.mark.parametrize("length", [242, 243, 249])
def test_a_view_may_have_a_name_that_no_topic_can_have(
    store: Store, catalog: Served, length: int
) -> None:
    topic = "t" * length
    store.topics.create(topic, schema=SCHEMA, key=["part"], config={"record.format": "parquet"})
    assert view_of(catalog, topic)["columns"]
    listed = [one["name"] for one in catalog.ask(VIEWS).json["identifiers"]]
    assert f"{topic}_latest" in listed


def test_offsets_beyond_the_numbers_have_no_view(
    store: Store, catalog: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 1)
    assert catalog.catalog().load_table("topics.f").format_version == 3
    monkeypatch.setattr(latest_view, "ROWS_EACH", 5)
    fill(store, 2)
    assert catalog.ask(f"{VIEWS}/f_latest").status == 404
    assert catalog.check_same("f") > 0
