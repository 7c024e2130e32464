"""``table.publish``: where it may lie, and that `maintain` publishes there and nowhere else."""

from __future__ import annotations

import logging
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.tables.published import SCHEMA, rows
from txnlog.admin.publish import _lies_in
from txnlog.config import check_stored_topic_config, check_topic_config
from txnlog.errors import InvalidConfig, InvalidOption, InvalidSchema
from txnlog.names import TopicPartition
from txnlog.results import FileDeletion, MaintenanceFailure, TablePublication
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import Store, attach
from txnlog.tables import delta
from txnlog.testing import VirtualClock

KEY = "table.publish"


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Store:
    """A store with a topic ``f`` that has 20 rows."""
    (tmp_path / "store").mkdir()
    made = attach(LocalStorage(str(tmp_path / "store")), create=True, clock=clock)
    made.topics.create("f", schema=SCHEMA, key=["carrier"])
    send(made, 0, 20)
    return made


def send(store: Store, first: int, stop: int, topic: str = "f") -> None:
    with store.producer() as producer:
        producer.send_batch(topic, rows(first, stop))


def publications(store: Store, **options: object) -> list[TablePublication]:
    """What a run that fails nowhere has published."""
    steps = store.maintain(**options)  # type: ignore[arg-type]
    assert [step for step in steps if isinstance(step, MaintenanceFailure)] == []
    return [step for step in steps if isinstance(step, TablePublication)]


def delta_rows(folder: Path) -> int:
    return len(pa.table(DeltaTable(str(folder)).scan(columns=["carrier"])))


@pytest.mark.parametrize(
    "value",
    [
        "",
        "delta:/data/tables/flights",
        "delta:C:\\tables\\flights",
        "delta:s3://lake/tables/flights",
        "delta:file:///data/a table",
        "delta:abfss://container@account.dfs.core.windows.net/flights",
        "iceberg:prod/sales.flights",
        "iceberg:my-cat_1/a.b.c",
    ],
)
def test_a_table_is_a_folder_or_in_a_named_catalog(value: str) -> None:
    assert check_topic_config({KEY: value}) == {KEY: value}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("flights", "a table is delta:URL"),
        ("delta:", "a table is delta:URL"),
        ("delta:tables/flights", "a table is delta:URL"),
        ("delta:s3://lake", "a table is delta:URL"),
        ("hudi:/data/flights", "a table is delta:URL"),
        ("iceberg:prod", "pyiceberg's configuration"),
        ("iceberg:prod/flights", "pyiceberg's configuration"),
        ("iceberg:https://me:hidden-word@host/sales.flights", "pyiceberg's configuration"),
        ("delta:s3://key:hidden-word@lake/flights", "may hold a secret"),
        ("delta:s3://hidden-word@lake/flights", "may hold a secret"),
        ("delta:abfss://container:hidden-word@account/flights", "may hold a secret"),
        ("delta:s3://lake/flights?sig=hidden-word", "may hold a secret"),
        ("delta:s3://lake/flights#hidden-word", "may hold a secret"),
        ("delta:/data/tables/../else", "without '..'"),
        ("delta:s3://lake/%2E%2e/else", "without '..'"),
        ("delta:C:\\tables\\..\\else", "without '..'"),
        ("delta:/data/\n", "printable"),
        ("delta:/" + "x" * 1024, "at most 1024"),
    ],
)
def test_what_it_may_not_be_is_said_but_not_shown(value: str, said: str) -> None:
    """All who read the topic see its settings, and its log is judged by the same rules."""
    with pytest.raises(InvalidConfig, match=KEY) as refused:
        check_topic_config({KEY: value})
    assert said in str(refused.value)
    assert "hidden-word" not in str(refused.value)
    with pytest.raises(ValueError, match=KEY):
        check_stored_topic_config({KEY: value})


def test_only_topics_with_parquet_files_have_it(store: Store) -> None:
    with pytest.raises(InvalidConfig, match=r"table\.publish.*record\.format=auto or parquet"):
        store.topics.create("g", config={KEY: "delta:/t", "record.format": "kafka"})
    store.topics.alter("f", config={KEY: "delta:/t"})
    with pytest.raises(InvalidConfig, match=r"table\.publish"):
        store.topics.alter("f", config={"record.format": "columns"})


@pytest.mark.parametrize(
    ("place", "inside"),
    [
        ("delta:/data/tables", True),
        ("delta:/data/tables/", True),
        ("delta:/data/tables/f", True),
        ("delta:", True),
        ("delta", True),
        ("delta:/", True),
        ("delta:/data/tab", False),
        ("delta:/data/tables/f/g", False),
        ("delta:s3://lake", False),
        ("iceberg", False),
    ],
)
def test_a_place_ends_where_a_part_of_the_setting_does(place: str, inside: bool) -> None:
    assert _lies_in("delta:/data/tables/f", place) is inside


def test_places_in_catalogs_and_in_buckets() -> None:
    for place in ("iceberg:prod", "iceberg:prod/", "iceberg:prod/sales", "iceberg:prod/sales.f"):
        assert _lies_in("iceberg:prod/sales.f", place)
    for place in ("iceberg:pro", "iceberg:prod/sale", "iceberg:prod/sales.f.g"):
        assert not _lies_in("iceberg:prod/sales.f", place)
    assert _lies_in("delta:s3://lake/f", "delta:s3://lake")
    assert not _lies_in("delta:s3://lake.other/f", "delta:s3://lake")
    assert not _lies_in("delta:s3://lake:9000/f", "delta:s3://lake")


def test_maintenance_publishes_where_it_may(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A dry run says so and writes nothing; what is up to date is left as it is."""
    folder = tmp_path / "tables/f"
    store.topics.alter("f", config={KEY: f"delta:{folder}"})
    place = f"delta:{tmp_path}/tables"
    with caplog.at_level(logging.WARNING):
        assert publications(store) == []
    assert "topic 'f' is not published" in caplog.text
    told = publications(store, publish=place, dry_run=True)
    assert [(one.added_files, one.version) for one in told] == [(1, None)]
    assert not folder.exists()
    done = publications(store, publish=[place])
    assert [(one.topic, one.added_files, one.version) for one in done] == [("f", 1, 0)]
    assert delta_rows(folder) == 20
    assert publications(store, publish=place, dry_run=True) == []
    assert publications(store, publish=place) == []
    assert DeltaTable(str(folder)).version() == 0
    send(store, 20, 30)
    told = publications(store, publish=place, dry_run=True)
    assert [(one.added_files, one.removed_files, one.version) for one in told] == [(1, 0, 0)]
    assert DeltaTable(str(folder)).version() == 0
    assert len(publications(store, topics="f", publish=place)) == 1
    assert delta_rows(folder) == 30


def test_a_catalog_is_the_one_that_the_configuration_names(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.topics.alter("f", config={KEY: "iceberg:prod-1/sales.f"})
    for variable in ("HOME", "PYICEBERG_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    [failed, _] = store.maintain(publish="iceberg:prod-1")
    assert isinstance(failed, MaintenanceFailure)
    assert (failed.part, failed.topic) == ("publishing", "f")
    assert "PYICEBERG_CATALOG__PROD_1__URI" in str(failed.error)
    uri = f"sqlite:///{tmp_path}/catalog.db"
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD_1__URI", uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD_1__WAREHOUSE", f"file://{tmp_path}/lake")
    for has_table in (False, True):
        told = publications(store, publish="iceberg:prod-1", dry_run=True)
        assert [(one.added_files, one.version is None) for one in told] == [(1, not has_table)]
        done = publications(store, publish="iceberg:prod-1")
        assert [(one.url, one.added_files) for one in done] == [("sales.f", 1)]
        send(store, 20, 30)
    assert publications(store, publish="iceberg:prod-1/sales", dry_run=True)
    found = load_catalog("prod-1", uri=uri).load_table("sales.f").scan().to_arrow()
    assert len(found) == 30


def test_a_failure_stops_nothing_else(store: Store, tmp_path: Path) -> None:
    """Another table at the place, a place that is not allowed, a package that is missing."""
    tables = tmp_path / "tables"
    for name in ("g", "h", "i"):
        store.topics.create(name, schema=SCHEMA, key=["carrier"])
        send(store, 0, 5, name)
    place = f"delta:{tables}"
    for name, where in (("f", "f"), ("g", "f"), ("h", "../else"), ("i", "i")):
        url = f"delta:{(tables / where).resolve()}"
        store.topics.alter(name, config={KEY: url})
    steps = store.maintain(publish=place)
    published = [step.topic for step in steps if isinstance(step, TablePublication)]
    failures = [step for step in steps if isinstance(step, MaintenanceFailure)]
    assert [(step.part, step.topic) for step in failures] == [
        ("publishing", "g"),
        ("vacuum", "g"),
        ("publishing", "h"),
    ]
    failed = {step.topic: step for step in failures if step.part == "publishing"}
    assert published == ["f", "i"]
    assert failed.keys() == {"g", "h"}
    assert "not of this topic" in str(failed["g"].error)
    assert "none of the places" in str(failed["h"].error)
    assert not (tmp_path / "else").exists()
    with patch.dict("sys.modules", {"deltalake": None}):
        [missing, *_] = store.maintain("f", publish=place)
    assert isinstance(missing, MaintenanceFailure)
    assert isinstance(missing.error, InvalidOption)
    assert "table.publish of topic 'f' needs deltalake" in str(missing.error)


def test_a_table_names_no_file_that_is_deleted_behind_it(
    store: Store, tmp_path: Path, clock: VirtualClock
) -> None:
    """Merged files are left out by the same run that deletes them."""
    folder = tmp_path / "tables/f"
    store.topics.alter("f", config={KEY: f"delta:{folder}", "file.delete.delay.ms": 0})
    for first in range(20, 200, 10):
        send(store, first, first + 10)
    assert store.tables.publish_delta("f", str(folder)).added_files == 19
    store.maintenance.merge("f")
    clock.time_ms += 60_000
    steps = store.maintain(publish="delta")
    kinds = [type(step) for step in steps]
    assert kinds.index(TablePublication) < kinds.index(FileDeletion)
    assert delta_rows(folder) == 200


@pytest.mark.parametrize("removes", ["rewritten", "deleted records"])
def test_no_file_goes_while_a_table_that_fails_names_it(
    store: Store, tmp_path: Path, clock: VirtualClock, removes: str
) -> None:
    """Its newest version stays whole until it can be published again."""
    folder = tmp_path / "tables/f"
    store.topics.alter("f", config={KEY: f"delta:{folder}", "file.delete.delay.ms": 0})
    for first in range(20, 200, 10):
        send(store, first, first + 10)
    store.tables.publish_delta("f", folder)
    if removes == "rewritten":
        store.maintenance.merge("f")
    else:
        store.topics.delete_records({TopicPartition("f", 0): 100})
    clock.time_ms += 60_000
    with patch.dict("sys.modules", {"deltalake": None}):
        steps = [*store.maintain(publish="delta")]
    failed = {step.part: step.error for step in steps if isinstance(step, MaintenanceFailure)}
    assert failed.keys() == {"publishing", "vacuum"}
    assert f"no file is deleted, purged records among them, until delta:{folder} is" in str(
        failed["vacuum"]
    )
    assert FileDeletion not in map(type, steps)
    assert delta_rows(folder) == 200
    kinds = [type(step) for step in store.maintain(publish="delta")]
    assert {TablePublication, FileDeletion} <= {*kinds}
    assert delta_rows(folder) == (200 if removes == "rewritten" else 100)


@pytest.mark.parametrize("publish", ["delta:/other", ()], ids=["elsewhere", "nowhere"])
def test_a_table_that_others_publish_keeps_no_file(
    store: Store, tmp_path: Path, clock: VirtualClock, publish: str | tuple[str, ...]
) -> None:
    """Whoever publishes nothing there cannot tell whether it names them, nor ever would."""
    store.topics.alter("f", config={KEY: f"delta:{tmp_path}/f", "file.delete.delay.ms": 0})
    keys = store.scan("f").to_arrow().select(["carrier"])
    assert store.maintenance.purge("f", keys).waiting_files == 1
    clock.time_ms += 60_000
    steps = store.maintain(publish=publish)
    assert FileDeletion in map(type, steps)
    assert store.maintenance.purge("f", keys).waiting_files == 0


def test_columns_that_delta_cannot_tell_apart_are_not_renamed(store: Store, tmp_path: Path) -> None:
    """Another folder, or none, may be given in the same step; Iceberg has the columns' ids."""
    rename = {"price": "fare"}
    store.topics.alter("f", config={KEY: f"delta:{tmp_path}/f"})
    for config in ({}, {KEY: f"delta:{tmp_path}/f"}):
        with pytest.raises(InvalidSchema, match=r"table\.publish=.*price would mean others: unset"):
            store.topics.alter("f", rename=rename, config=config)
    store.topics.alter("f", rename=rename, config={KEY: f"delta:{tmp_path}/g"})
    store.topics.alter("f", config={KEY: "iceberg:prod/sales.f"})
    store.topics.alter("f", rename={"fare": "price"})


@pytest.mark.parametrize("place", ["/data", "", "s3://lake", 5])
def test_a_place_says_which_kind_of_table(store: Store, place: object) -> None:
    with pytest.raises(InvalidOption, match="begins with 'delta:' or 'iceberg:'"):
        store.maintain(publish=[place])  # type: ignore[list-item]


def test_files_that_others_delete_meanwhile_are_no_failure(store: Store, tmp_path: Path) -> None:
    """It begins again: what was merged is in other files by then."""
    store.topics.alter("f", config={"file.delete.delay.ms": 0})
    for number in range(1, 4):
        send(store, 20 * number, 20 * number + 20)
    files_of = delta._Publication._files
    others: list[int] = []

    def overtaken(publication: delta._Publication) -> object:
        if not others:
            others.append(1)
            assert publications(store) == []
        return files_of(publication)

    with patch.object(delta._Publication, "_files", overtaken):
        store.tables.publish_delta("f", tmp_path / "table")
    assert others
    assert delta_rows(tmp_path / "table") == 80
