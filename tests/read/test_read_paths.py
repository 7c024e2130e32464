"""Every way out of a topic, but Spark's, against hostile values of every type.

Each file has one or two rows, so that a predicate may pass over any of them by its bounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

import txnlog
from tests.support.read.hostile_readers import (
    IEEE,
    LARGEST,
    TOTAL,
    Reader,
    arrow,
    arrow_knows,
    arrow_knows_of_files,
    datafusion_knows,
    datafusion_literal,
    differences,
    duckdb_ids,
    iceberg,
    iceberg_knows,
    polars_ids,
    polars_knows,
    sql,
)
from tests.support.read.hostile_values import (
    COLUMNS,
    FORMS,
    NARROW,
    NESTED,
    ROWS,
    TIMESTAMP,
    Column,
    Compare,
    Form,
    Not,
    Predicate,
    fill,
    predicates,
    table_of,
)
from txnlog import Store
from txnlog.tables.fresh_table import FreshTables

QUICK = "f64"
"""The column at which readers go wrong most: by the quick ways it is in `make test`."""
OFTEN = (QUICK, "text")
"""Those of which `make test-more` runs every way, beside times by the quick ones."""


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store's, and its tables; the topic is in one of its forms."""
    made = tmp_path_factory.mktemp("paths")
    fill(txnlog.open(str(made / "store"), create=True), "t", request.param)
    return made


@pytest.fixture
def store(folder: Path) -> Store:
    return txnlog.open(str(folder / "store"))


def _ids(table: pa.Table) -> list[int]:
    ids: list[int] = table["id"].to_pylist()
    return ids


def _scan(store: Store, folder: Path) -> Reader:
    def ids(predicate: Predicate) -> list[int]:
        return _ids(store.scan("t", columns=["id"], filter=arrow(predicate)).to_arrow())

    return Reader("scan", IEEE, ids, arrow_knows)


def _dataset(store: Store, folder: Path) -> Reader:
    found = store.snapshot(["t"]).dataset("t")

    def ids(predicate: Predicate) -> list[int]:
        return _ids(found.to_table(columns=["id"], filter=arrow(predicate)))

    return Reader("dataset", IEEE, ids, arrow_knows_of_files)


def _polars(store: Store, folder: Path) -> Reader:
    found = store.snapshot(["t"]).dataset("t")
    return Reader("polars", [*IEEE, *LARGEST], partial(polars_ids, found), polars_knows)


def _polars_alone(store: Store, folder: Path) -> Reader:
    found = store.snapshot(["t"]).dataset("t")

    def knows(predicate: Predicate) -> bool:
        is_finer = isinstance(predicate, Compare) and not polars_knows(predicate)
        return not is_finer and not (isinstance(predicate, Not) and not knows(predicate.of))

    return Reader("polars alone", LARGEST, partial(polars_ids, found, pushes=False), knows)


def _duckdb(store: Store, folder: Path) -> Reader:
    found = store.snapshot(["t"]).dataset("t")
    return Reader("duckdb", LARGEST, partial(duckdb_ids, found))


def _delta(store: Store, folder: Path) -> Reader:
    url = str(folder / "delta")
    store.tables.publish_delta("t", url)
    table = DeltaTable(url)

    def ids(predicate: Predicate) -> list[int]:
        text = sql(predicate, datafusion_literal)
        return _ids(pa.table(table.scan(columns=["id"], predicate=text)))

    return Reader("delta", [*LARGEST, *TOTAL], ids, datafusion_knows)


def _delta_in_duckdb(store: Store, folder: Path) -> Reader:
    url = str(folder / "delta")
    store.tables.publish_delta("t", url)
    table = DeltaTable(url)
    return Reader("delta in duckdb", LARGEST, lambda p: duckdb_ids(pa.table(table.scan()), p))


def _iceberg(store: Store, folder: Path) -> Reader:
    place = folder / "iceberg"
    place.mkdir(exist_ok=True)
    catalog = load_catalog(
        "default", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}"
    )
    store.tables.publish_iceberg("t", catalog, "sales.t")
    table = catalog.load_table("sales.t")

    def ids(predicate: Predicate) -> list[int]:
        found = table.scan(row_filter=iceberg(predicate), selected_fields=("id",))
        return _ids(found.to_arrow())

    return Reader("iceberg", [*IEEE, *LARGEST], ids, iceberg_knows)


def _catalog(store: Store, folder: Path) -> Reader:
    table = StaticTable.from_metadata(FreshTables(store.logs).load("t").location)

    def ids(predicate: Predicate) -> list[int]:
        found = table.scan(row_filter=iceberg(predicate), selected_fields=("id",))
        return _ids(found.to_arrow())

    return Reader("catalog", [*IEEE, *LARGEST], ids, iceberg_knows)


WAYS: Sequence[Callable[[Store, Path], Reader]] = (
    *(_scan, _dataset, _polars, _polars_alone, _duckdb),
    *(_delta, _delta_in_duckdb, _iceberg, _catalog),
)


def _cases() -> list[object]:
    """Each column by each way out of each form; the quick ones are in `make test`."""
    return [
        pytest.param(
            form,
            way,
            column,
            id=f"{form}-{way.__name__[1:]}-{column.name}",
            marks=_marks(form, way, column),
        )
        for form in FORMS
        for way in WAYS
        for column in COLUMNS
        # pyiceberg compares with the type of a file: literals of more digits are errors, or more
        # than all others.
        if not (form == "widened" and way in (_iceberg, _catalog) and column.name in NARROW)
    ]


def _marks(
    form: Form, way: Callable[[Store, Path], Reader], column: Column
) -> list[pytest.MarkDecorator]:
    is_quick = way in (_dataset, _polars, _delta)
    if is_quick and column.name == QUICK:
        return [] if form == "written" else [pytest.mark.more]
    often = (*OFTEN, "at_ms") if is_quick else OFTEN
    is_often = form == "written" and column.name in often
    return [pytest.mark.more if is_often else pytest.mark.slow]


EACH_FORM = pytest.mark.parametrize(
    "folder",
    [pytest.param(form, marks=[pytest.mark.more] * (form != "written")) for form in FORMS],
    indirect=True,
)


@pytest.mark.parametrize(("folder", "way", "column"), _cases(), indirect=["folder"])
def test_a_predicate_keeps_what_it_is_true_of(
    store: Store, folder: Path, way: Callable[[Store, Path], Reader], column: Column
) -> None:
    """Whatever bounds say, and however exact the literal is."""
    count, wrong = differences(way(store, folder), predicates(column))
    assert count >= 20
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:20])


@EACH_FORM
def test_every_value_comes_out_as_it_was(store: Store, folder: Path) -> None:
    """NaN, both zeros, the ends of each type; by a scan, as a dataset and in tables."""
    names = ["id", *(column.name for column in COLUMNS), *NESTED.names]
    sent = table_of(ROWS)
    found = {
        "scan": store.scan("t", columns=[*names, TIMESTAMP.name]).to_arrow(),
        "dataset": store.snapshot(["t"]).dataset("t").to_table(),
    }
    _delta(store, folder)
    found["delta"] = pa.table(DeltaTable(str(folder / "delta")).scan(columns=names))
    for way, table in found.items():
        order = pc.sort_indices(table["id"])
        for name in table.column_names:
            wanted = sent[name].combine_chunks()
            got = table[name].combine_chunks().cast(wanted.type).take(order)
            # As text: NaN is not equal to NaN, and 0.0 is to -0.0.
            assert str(got) == str(wanted), (way, name)


@EACH_FORM
def test_a_consumer_gets_all_of_them(store: Store) -> None:
    """However a value looks in Python, and in JSON."""
    found: dict[bool, list[int]] = {}
    for as_json in (False, True):
        with store.consumer(as_json=as_json) as consumer:
            partitions = store.snapshot(["t"]).partitions("t")
            consumer.assign([txnlog.TopicPartition("t", n) for n in partitions])
            consumer.seek_to_beginning()
            rows = []
            while some := consumer.poll():
                values = (json.loads(one.value) if as_json else one.value for one in some)
                rows += [row["id"] for row in values]
            found[as_json] = sorted(rows)
    assert found[False] == found[True] == [row["id"] for row in ROWS]
