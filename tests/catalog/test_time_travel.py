"""Earlier snapshots of a catalog's tables: each reads as the topic was, whoever has shown it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.catalog.served import Served, served
from tests.tables.published import SCHEMA, rows
from txnlog import TopicPartition
from txnlog.clock import SystemClock
from txnlog.storage.adapters.local import LocalStorage
from txnlog.store import Store, attach
from txnlog.tables import fresh_pieces, table_history
from txnlog.tables.fresh_table import FreshTables
from txnlog.testing import VirtualClock

DAY_MS = 86_400_000
PLAIN = pa.schema([pa.field("carrier", pa.string(), nullable=False), ("flight", pa.int64())])


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Store:
    """A store with a topic ``f`` of two partitions."""
    (tmp_path / "st ore").mkdir()
    made = attach(LocalStorage(str(tmp_path / "st ore")), create=True, clock=clock)
    made.topics.create("f", partitions=2, schema=PLAIN, key=["carrier"])
    return made


@pytest.fixture
def catalog(store: Store) -> Iterator[Served]:
    with served(store) as opened:
        yield opened


def send(store: Store, *numbers: int, **more: object) -> None:
    with store.producer() as producer:
        for number in numbers:
            producer.send("f", {"carrier": f"c{number}", "flight": number, **more})


def again(store: Store) -> Store:
    """As another process opens it."""
    return attach(LocalStorage(store.url), clock=store.logs.clock)


def metadata(catalog: Served) -> dict[str, Any]:
    found: dict[str, Any] = catalog.ask("/v1/namespaces/topics/tables/f").json["metadata"]
    return found


def ids(catalog: Served) -> list[int]:
    """The snapshots that are listed, oldest first; what Iceberg wants of them is checked."""
    found = metadata(catalog)
    snapshots = found["snapshots"]
    listed = [one["snapshot-id"] for one in snapshots]
    assert len({*listed}) == len(listed)
    for key in ("timestamp-ms", "sequence-number"):
        values = [one[key] for one in snapshots]
        assert values == sorted({*values})
    logged = [(one["snapshot-id"], one["timestamp-ms"]) for one in found["snapshot-log"]]
    assert logged == [(one["snapshot-id"], one["timestamp-ms"]) for one in snapshots]
    known = {one["schema-id"] for one in found["schemas"]}
    has_default = "initial-default" in json.dumps(found["schemas"])
    is_numbered = found["next-row-id"] > 0
    assert found["format-version"] == (3 if has_default or is_numbered else 2)
    assert {one["schema-id"] for one in snapshots} | {found["current-schema-id"]} == known
    if snapshots:
        assert found["current-snapshot-id"] == listed[-1]
        assert found["refs"]["main"]["snapshot-id"] == listed[-1]
        assert found["last-sequence-number"] >= snapshots[-1]["sequence-number"]
        assert found["last-updated-ms"] >= snapshots[-1]["timestamp-ms"]
    assert not any("parent-snapshot-id" in one for one in snapshots)
    return listed


def shown(rows_of: pa.Table) -> list[str]:
    """Rows that can be compared: a table's, or a topic's."""
    names = ["_tombstone" if name == "_deleted" else name for name in rows_of.column_names]
    named = rows_of.rename_columns(names)
    kept = sorted(name for name in names if name not in ("_headers", "_timestamp"))
    return sorted(map(repr, named.select(kept).to_pylist()))


def topic_rows(store: Store) -> list[str]:
    columns = [*store.topics.describe("f").schema.columns.names, "_deleted"]  # type: ignore[union-attr]
    return shown(store.scan("f", columns=columns, isolation_level="snapshot").to_arrow())


def table_rows(catalog: Served, snapshot_id: int) -> list[str]:
    table = catalog.catalog().load_table("topics.f")
    return shown(table.scan(snapshot_id=snapshot_id).to_arrow())


def test_each_snapshot_reads_as_the_topic_was(
    store: Store, catalog: Served, clock: VirtualClock
) -> None:
    """Merged, compacted and trimmed, with other columns and other names, and with no row left."""
    seen: dict[int, list[str]] = {}
    times: dict[int, int] = {}

    def look() -> None:
        clock.time_ms += 60_000
        times[clock.time_ms] = (listed := ids(catalog))[-1]
        seen[listed[-1]] = topic_rows(store)
        assert listed == [*seen]

    clock.time_ms = SystemClock().now_ms()  # files have real times
    assert ids(catalog) == []
    for first in range(0, 40, 5):
        send(store, *range(first, first + 8))
        look()
    store.topics.alter("f", config={"cleanup.policy": "compact"})
    store.maintenance.compact("f")
    look()
    store.topics.delete_records({TopicPartition("f", 0): 7})
    look()
    gate = pa.field("gate", pa.string(), nullable=False)
    wide = pa.schema([*PLAIN, gate])
    store.topics.alter("f", schema=wide, defaults={"gate": "?"})
    look()
    send(store, 50, 51, gate="A")
    look()
    number = pa.field("number", pa.int64())
    store.topics.alter("f", schema=pa.schema([PLAIN[0], number, gate]), rename={"flight": "number"})
    look()
    store.topics.alter("f", schema=pa.schema([PLAIN[0], number]))
    look()
    ends = {0: store.topics.describe("f").partitions[0].end_offset}
    ends[1] = store.topics.describe("f").partitions[1].end_offset
    store.topics.delete_records({TopicPartition("f", part): end for part, end in ends.items()})
    look()
    assert seen[ids(catalog)[-1]] == []
    store.maintain()
    for snapshot_id, wanted in seen.items():
        assert table_rows(catalog, snapshot_id) == wanted
    table = catalog.catalog().load_table("topics.f")
    for time_ms, snapshot_id in times.items():
        found = table.snapshot_as_of_timestamp(time_ms)
        assert found is not None
        assert found.snapshot_id == snapshot_id
    assert table.snapshot_as_of_timestamp(min(times) - 60_001) is None


def test_an_earlier_default_keeps_its_format(store: Store, catalog: Served) -> None:
    """Iceberg has no defaults in format 2, which the table had before and would have without it."""
    gate = pa.field("gate", pa.string(), nullable=False)
    store.topics.delete("f")
    store.topics.create("f", schema=PLAIN)
    send(store, 1)
    first = ids(catalog)[0]
    assert metadata(catalog)["format-version"] == 2
    store.topics.alter("f", schema=pa.schema([*PLAIN, gate]), defaults={"gate": "?"})
    second = ids(catalog)[1]
    store.topics.alter("f", schema=PLAIN)
    assert ids(catalog)[:2] == [first, second]
    assert metadata(catalog)["format-version"] == 3
    table = catalog.catalog().load_table("topics.f")
    assert table.scan(snapshot_id=second).to_arrow()["gate"].to_pylist() == ["?"]
    assert "gate" not in table.scan(snapshot_id=first).to_arrow().column_names


@pytest.mark.parametrize("infinite", [math.inf, -math.inf])
def test_a_default_that_no_file_lacks_need_not_be_said(
    store: Store, catalog: Served, infinite: float
) -> None:
    """Iceberg's metadata cannot say an infinite one; another column's is said beside it."""
    store.topics.delete("f")
    columns = pa.schema([*PLAIN, ("far", pa.float64())])
    store.topics.create("f", schema=columns, defaults={"far": infinite})
    send(store, 1)
    ids(catalog)
    store.topics.alter(
        "f", schema=columns.append(pa.field("gate", pa.int8())), defaults={"gate": 7}
    )
    shown = {one["name"]: one for one in metadata(catalog)["schemas"][-1]["fields"]}
    assert shown["gate"]["initial-default"] == 7
    assert "initial-default" not in shown["far"]
    [row] = catalog.read("f", ["far", "gate"]).to_pylist()
    assert repr(row) == repr({"far": infinite, "gate": 7})


def test_servers_agree_on_what_was_shown(
    store: Store, catalog: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes later, and one that has not been asked for long, list the same."""
    monkeypatch.setattr(table_history, "MOST_SNAPSHOTS", 30)
    send(store, 1)
    first = ids(catalog)
    with served(again(store)) as other:
        assert ids(other) == first
        for number in range(23):
            send(store, number)
            listed = ids(other)
        assert len(listed) == 24
        assert ids(catalog) == listed
        send(store, 100)
        mine = ids(catalog)
        assert ids(other) == mine == [*listed, mine[-1]]
        for snapshot_id in mine[::6]:
            assert table_rows(catalog, snapshot_id) == table_rows(other, snapshot_id)
    # The number of snapshots is bounded, and they are an unbroken row.
    for number in range(20):
        send(store, number)
        listed = ids(catalog)
    assert len(listed) == 30
    assert listed[: 30 - 20] == mine[-10:]
    with served(again(store)) as later:
        assert ids(later) == listed


class _Interrupted(LocalStorage):
    """Before it lists a table's folder, or puts its metadata, something else happens once."""

    before_listing: Any = None
    before_put: Any = None

    def list_all(self, folder: str, *scanned: Any) -> Iterator[tuple[str, int]]:
        if folder.startswith("tables/") and self.before_listing is not None:
            happens, self.before_listing = self.before_listing, None
            happens()
        return super().list_all(folder, *scanned)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name.endswith(".metadata.json") and self.before_put is not None:
            happens, self.before_put = self.before_put, None
            happens()
        return super().put_if_absent(name, data)


def totals(tables: FreshTables) -> list[str]:
    """How many rows each snapshot has."""
    listed = json.loads(tables.load("f").metadata)["snapshots"]
    return [one["summary"]["total-records"] for one in listed]


def test_a_table_never_goes_back(store: Store, clock: VirtualClock) -> None:
    """Another server shows a later moment between the look at the topic and the answer."""
    slow = _Interrupted(store.url)
    mine = FreshTables(attach(slow, clock=clock).logs)
    others = FreshTables(again(store).logs)
    send(store, 1)

    def overtake() -> None:
        send(store, 1)
        others.load("f")

    slow.before_listing = overtake
    assert totals(mine) == ["2"]
    send(store, 1)
    slow.before_put = overtake
    assert totals(mine) == ["2", "4"]
    assert others.load("f").metadata == mine.load("f").metadata
    # The same moment, which another one has shown meanwhile: or this one, if the answer was lost.
    send(store, 1)
    slow.before_put = lambda: others.load("f")
    assert totals(mine) == ["2", "4", "5"]


def test_those_who_are_always_faster_are_no_reason_to_wait(
    store: Store, catalog: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store, 1)
    assert len(ids(catalog)) == 1
    send(store, 1)
    monkeypatch.setattr(table_history.TableHistory, "put", lambda *_: False)
    answer = catalog.ask("/v1/namespaces/topics/tables/f")
    assert answer.error == (503, "ServiceUnavailableException")
    assert "try again" in answer.json["error"]["message"]


def test_snapshots_are_listed_as_long_as_their_files_are_kept(
    store: Store, catalog: Served, clock: VirtualClock
) -> None:
    """Over the days, and no longer than the topic keeps deleted files."""
    send(store, 1)
    first = ids(catalog)
    wanted = topic_rows(store)
    for day in range(1, 4):
        clock.time_ms += DAY_MS
        send(store, 1 + day)
        assert len(ids(catalog)) == 1 + day
        assert table_rows(catalog, first[0]) == wanted
    with served(again(store)) as other:
        assert ids(other) == ids(catalog)
    clock.time_ms += 4 * DAY_MS
    listed = ids(catalog)
    assert first[0] not in listed
    assert len(listed) == 4
    store.topics.alter("f", config={"file.delete.delay.ms": 2 * DAY_MS})
    assert len(ids(catalog)) == 2
    store.topics.alter("f", config={"file.delete.delay.ms": 0})
    clock.time_ms += 1_000
    assert len(ids(catalog)) == 1
    shutil.rmtree(Path(store.url) / "tables")
    with served(again(store)) as other:
        assert len(ids(other)) == 1


def test_snapshots_expire_while_the_topic_is_quiet(
    store: Store, catalog: Served, clock: VirtualClock
) -> None:
    """Within a day, and on every server: it is asked again, and says what is still there."""
    clock.time_ms = SystemClock().now_ms() // DAY_MS * DAY_MS + 1000
    store.topics.alter("f", config={"file.delete.delay.ms": 60_000})
    for number in range(3):
        send(store, number)
        clock.time_ms += 20_000
        ids(catalog)
    listed = ids(catalog)
    with served(again(store)) as other:
        for left in (3, 2, 1, 1, 1):
            assert ids(other) == ids(catalog) == listed[-left:]
            before = metadata(catalog)
            assert metadata(other) == metadata(catalog) == before
            clock.time_ms += 20_000


def test_times_of_servers_that_differ(store: Store, catalog: Served, clock: VirtualClock) -> None:
    """A clock that is behind changes no order; what was far ahead is not listed any more."""
    noon_ms = clock.time_ms - clock.time_ms % DAY_MS + DAY_MS // 2
    for ahead_ms in (0, -60_000, 90_000, -30_000):
        clock.time_ms = noon_ms + ahead_ms
        send(store, 1)
        listed = ids(catalog)
    assert len(listed) == 4
    clock.time_ms = noon_ms + 2 * 3_600_000
    send(store, 1)
    assert len(ids(catalog)) == 5
    clock.time_ms = noon_ms
    send(store, 1)
    assert len(ids(catalog)) == 1
    assert metadata(catalog)["last-updated-ms"] == noon_ms


def dates(catalog: Served) -> list[int]:
    return [one["timestamp-ms"] for one in metadata(catalog)["snapshots"]]


def test_a_snapshot_is_as_old_as_what_it_shows(
    store: Store, catalog: Served, clock: VirtualClock
) -> None:
    """A reader whose transaction began before it asked finds it, and never another in its place."""
    begun_ms = clock.time_ms
    send(store, 1)
    clock.time_ms += 1_000
    assert dates(catalog) == [begun_ms]
    clock.time_ms += 1_000
    writer = store.producer(transactional_id="t")
    writer.init_transactions()
    writer.begin_transaction()
    writer.send("f", {"carrier": "c2", "flight": 2})
    writer.flush()
    placed_ms = clock.time_ms
    clock.time_ms += 1_000
    assert dates(catalog) == [begun_ms, placed_ms]
    shown_ms = clock.time_ms = clock.time_ms + 1_000
    assert dates(catalog) == [begun_ms, placed_ms]
    clock.time_ms += 1_000
    writer.commit_transaction()
    clock.time_ms += 1_000
    # No entry tells when it was decided: not before the moment at which it did not show.
    assert dates(catalog) == [begun_ms, placed_ms, shown_ms + 1]
    assert totals(FreshTables(store.logs)) == ["1", "1", "2"]
    clock.time_ms += 1_000
    send(store, 3)
    sent_ms = clock.time_ms
    clock.time_ms += 1_000
    with served(again(store)) as other:
        assert dates(other) == [begun_ms, placed_ms, shown_ms + 1, sent_ms]


@pytest.mark.parametrize("shows_it_too", [False, True])
def test_what_another_server_has_shown_is_not_dated_back(
    store: Store, catalog: Served, clock: VirtualClock, shows_it_too: bool
) -> None:
    send(store, 1)
    writer = store.producer(transactional_id="t")
    writer.init_transactions()
    writer.begin_transaction()
    writer.send("f", {"carrier": "c2", "flight": 2})
    writer.flush()
    begun_ms = clock.time_ms
    shown_ms = clock.time_ms = clock.time_ms + 5_000
    assert dates(catalog) == [begun_ms]
    with served(again(store)) as other:
        clock.time_ms += 5_000
        if shows_it_too:
            shown_ms = clock.time_ms
            assert dates(other) == [begun_ms]
            clock.time_ms += 5_000
        writer.commit_transaction()
        assert dates(other) == [begun_ms, shown_ms + 1]
    # A writer's clock that is ahead makes no snapshot of a time to come.
    clock.time_ms += 600_000
    send(store, 3)
    clock.time_ms -= 500_000
    assert dates(catalog)[-1] == clock.time_ms


def test_an_old_topic_keeps_what_was_shown_lately(
    store: Store, catalog: Served, clock: VirtualClock
) -> None:
    """Its rows are old; that they were shown, and its files with them, is not."""
    send(store, 1)
    sent_ms = clock.time_ms
    clock.time_ms += 30 * DAY_MS
    assert dates(catalog) == [sent_ms]
    clock.time_ms += DAY_MS
    send(store, 2)
    assert dates(catalog) == [sent_ms, clock.time_ms]


def test_metadata_does_not_grow_without_end(
    store: Store, catalog: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summaries of topics of many partitions are long."""
    monkeypatch.setattr(table_history, "_MOST_BYTES", 2_000)
    for number in range(12):
        send(store, number)
        listed = ids(catalog)
    assert 2 <= len(listed) <= 6


def test_a_table_that_is_made_anew_has_no_past(store: Store, catalog: Served) -> None:
    send(store, 1)
    first = ids(catalog)
    store.topics.delete("f")
    store.topics.create("f", schema=SCHEMA, key=["carrier"])
    assert ids(catalog) == []
    with store.producer() as producer:
        producer.send_batch("f", rows(0, 3))
    assert first[0] not in ids(catalog)


def test_bounds_that_come_later_are_of_the_same_snapshot(
    store: Store, catalog: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_pieces, "_MEAN_FILES", 2)
    monkeypatch.setattr(fresh_pieces, "MOST_FOOTERS", 8)
    send(store, 0)
    first = ids(catalog)
    for number in range(1, 30):
        send(store, number)
    found, lists = [], []
    for _ in range(8):
        found.append(ids(catalog))
        lists.append(metadata(catalog)["snapshots"][-1]["manifest-list"])
    assert len({*lists}) > 1
    assert lists[-2] == lists[-1]
    assert found == [[*first, found[0][-1]]] * 8
    assert table_rows(catalog, found[0][-1]) == topic_rows(store)


@pytest.mark.parametrize("change", ["cut", "foreign", "order", "schemas", "deep", "huge"])
def test_what_no_server_has_put_is_passed_over(
    store: Store, catalog: Served, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is sent to another server, and the table is shown all the same."""
    for number in range(3):
        send(store, number)
        ids(catalog)
    path = max((Path(store.url) / "tables").rglob("*.metadata.json"))
    found = json.loads(path.read_text())
    if change == "foreign":
        found["snapshots"][0]["manifest-list"] = "s3://elsewhere/tables/list.avro"
    elif change == "order":
        found["snapshots"].reverse()
    elif change == "schemas":
        found["schemas"][0]["schema-id"] += 1
    elif change == "huge":
        found["snapshots"] *= 1000
    text = json.dumps(found)
    if change == "cut":
        text = text[:-2]
    elif change == "deep":
        deep = "[" * 300_000 + "]" * 300_000
        text = text.replace('"schemas":', f'"schemas": [{deep}], "x":')
    path.write_text(text)
    with served(again(store)) as other:
        assert len(ids(other)) == 1
        assert "is passed over, with its snapshots" in caplog.text
        send(store, 3)
        assert len(ids(other)) == 2
        assert other.check_same("f") == 4


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"properties": {"py-io-impl": "evil.Module", "s3.endpoint": "http://elsewhere"}}, True),
        ({"location": "s3://elsewhere/t"}, True),
        ({"statistics": [{"snapshot-id": 1, "statistics-path": "s3://elsewhere/t"}]}, True),
        ({"refs": {"main": {"snapshot-id": 1, "type": "branch"}}}, True),
        ({"format-version": 7}, True),
        ({"current-snapshot-id": "x"}, True),
        ({"padding": "x" * 50}, True),
        ({"last-updated-ms": "x"}, False),
        ({"schemas": [{"type": "struct", "schema-id": 0, "fields": [{"id": "x"}]}]}, False),
        ({"schemas": [{"type": "struct", "schema-id": 0, "fields": [], "x": 1}]}, False),
    ],
    ids=str,
)
def test_stored_metadata_is_not_served(
    store: Store, catalog: Served, change: dict[str, object], *, kept: bool
) -> None:
    """A client would act on it: load a module, or send its requests elsewhere."""
    send(store, 0)
    ids(catalog)
    send(store, 1)
    ids(catalog)
    path = max((Path(store.url) / "tables").rglob("*.metadata.json"))
    right = json.loads(path.read_text())
    path.write_text(json.dumps(right | change, separators=(",", ":")))
    with served(again(store)) as other:
        found = metadata(other)
        listed = len(found["snapshots"])
        assert listed == (2 if kept else 1)
        right["last-updated-ms"] = found["last-updated-ms"]
        if kept:
            assert found == right
        assert found["properties"] == right["properties"]
        assert other.check_same("f") == 2
        send(store, 2)
        assert len(ids(other)) == listed + 1


class _Asked(LocalStorage):
    """Keeps the names of metadata that was asked for or put."""

    names: list[str]

    def size(self, name: str) -> int:
        self._note(name)
        return super().size(name)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._note(name)
        return super().put_if_absent(name, data)

    def _note(self, name: str) -> None:
        if name.endswith(".metadata.json"):
            self.names.append(name)


def test_what_others_have_shown_is_found_with_few_requests(
    store: Store, clock: VirtualClock
) -> None:
    """However many answers there were; one who has given the last needs a put alone."""
    asked = _Asked(store.url)
    asked.names = []
    late, busy = FreshTables(attach(asked, clock=clock).logs), FreshTables(again(store).logs)
    send(store, 0)
    late.load("f")
    for count in (1, 40):
        for number in range(count):
            send(store, number)
            busy.load("f")
        asked.names.clear()
        answer = late.load("f")
        assert answer.metadata == busy.load("f").metadata
        assert len(asked.names) <= 3 + 2 * count.bit_length()
        send(store, 1)
        asked.names.clear()
        late.load("f")
        assert len(asked.names) == 1
